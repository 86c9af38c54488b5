"""The proxy passes on what it does not harm, and ends without a trace."""

import pathlib
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).parent

PROGRAM = """
import socket
from proxy import Proxy

REQUEST = b"POST /v1/acquire HTTP/1.1\\r\\nContent-Length: 2\\r\\n\\r\\n{}"
service = socket.create_server(("127.0.0.1", 0))
proxy = Proxy(1, 0)
proxy.target = service.getsockname()
caller = socket.create_connection(("127.0.0.1", proxy.port))
caller.sendall(REQUEST)
passed_on, _ = service.accept()
assert passed_on.recv(1000) == REQUEST
proxy._loop.call_soon_threadsafe(proxy._later, 60, 1, REQUEST)
proxy.close()
assert caller.recv(1000) == b"", "the connection is closed"
assert not proxy._thread.is_alive()
for each in (service, caller, passed_on):
    each.close()
print("closed")
"""


class ProxyTest(unittest.TestCase):
    def test_proxy_ends_quietly_with_requests_under_way(self):
        command = [sys.executable, "-W", "always", "-X", "dev", "-c", PROGRAM]
        ended = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=20)
        self.assertEqual((ended.stdout, ended.stderr, ended.returncode), ("closed\n", "", 0))


if __name__ == "__main__":
    unittest.main()
