//! Requests its first event and waits: the start of a process and one connection, which every function needs.

use std::io::{Error, Read, Write};
use std::net::TcpStream;

fn main() -> Result<(), Error> {
    let runtime_api = std::env::var("AWS_LAMBDA_RUNTIME_API").map_err(Error::other)?;
    let mut stream = TcpStream::connect(&runtime_api)?;
    let path = "/2018-06-01/runtime/invocation/next";
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: {runtime_api}\r\n\r\n").as_bytes())?;
    stream.read_to_end(&mut Vec::new())?;
    Ok(())
}
