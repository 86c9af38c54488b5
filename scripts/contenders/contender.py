"""One more contender for scripts/contend.sh: runs $CONTEND_JOB under the lock $CONTEND_KEY, once."""

import os
import subprocess

from leasehold import Client, Guard

with Client(os.environ["LEASEHOLD_URL"], owner_name="python", lease=1) as client:
    match client.acquire(os.environ["CONTEND_KEY"], wait=10):
        case Guard() as guard:
            token = str(guard.fencing_token)
            subprocess.run([os.environ["CONTEND_JOB"]], env=os.environ | {"LEASEHOLD_FENCING_TOKEN": token}, check=True)
            guard.release()
        case _:
            raise SystemExit(75)
