//! A proxy that answers every CONNECT with a tunnel to one address, so that a name leads to this address without DNS.

use std::net::SocketAddr;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

/// Starts a proxy, which ends with the runtime; returns its URL.
pub(crate) async fn start_for(target: SocketAddr) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                // A client may close its connection.
                let _ = tunnel(socket, target).await;
            });
        }
    });
    format!("http://{address}")
}

async fn tunnel(socket: TcpStream, target: SocketAddr) -> std::io::Result<()> {
    let mut client = BufReader::new(socket);
    let mut line = String::new();
    loop {
        line.clear();
        if client.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        if line.trim().is_empty() {
            break;
        }
    }
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    let mut server = TcpStream::connect(target).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}
