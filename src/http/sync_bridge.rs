//! A bounded byte pipe between blocking code and async tasks. The end is marked explicitly, so a broken stream never
//! looks complete.

use std::io::{self, Read, Write};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::{Stream, stream};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Queue length, in pieces.
const QUEUED_PIECES: usize = 4;
/// Size of a piece written by blocking code, in bytes.
const PIECE_BYTES: usize = 256 * 1024;

/// A message in the queue: bytes, the end, or an error.
#[derive(Debug)]
enum PipePiece {
    Bytes(Bytes),
    End,
    Broken(io::Error),
}

/// Creates a pipe.
pub(super) fn pipe() -> (PipeSender, PipeReceiver) {
    let (sender, receiver) = channel(QUEUED_PIECES);
    (PipeSender(sender), PipeReceiver { queue: receiver, piece: Bytes::new(), ended: false })
}

/// The input of the pipe, for async code. If dropped without an end, the pipe is broken.
#[derive(Debug)]
pub(super) struct PipeSender(Sender<PipePiece>);

impl PipeSender {
    /// Sends bytes, and waits for space in the queue. Returns false if the reader has stopped.
    pub(super) async fn put(&self, bytes: Bytes) -> bool {
        self.0.send(PipePiece::Bytes(bytes)).await.is_ok()
    }

    /// Marks the end of the bytes.
    pub(super) async fn end(self) {
        // The reader may have stopped.
        let _ = self.0.send(PipePiece::End).await;
    }

    /// Breaks the pipe: the bytes so far are incomplete.
    pub(super) async fn broken(self, reason: io::Error) {
        let _ = self.0.send(PipePiece::Broken(reason)).await;
    }

    /// Converts to a blocking writer, which must not be used in an async task.
    pub(super) fn writer(self) -> PipeWriter {
        PipeWriter { sender: self, piece: BytesMut::new() }
    }
}

/// The input of the pipe, for blocking code.
#[derive(Debug)]
pub(super) struct PipeWriter {
    sender: PipeSender,
    piece: BytesMut,
}

impl PipeWriter {
    /// Ends the pipe: complete, or broken with the error.
    pub(super) fn end(mut self, ended: io::Result<()>) {
        let ended = ended.and_then(|()| self.flush());
        // The reader may have stopped.
        let _ = self.sender.0.blocking_send(ended.map_or_else(PipePiece::Broken, |()| PipePiece::End));
    }

    fn send(&mut self) -> io::Result<()> {
        let piece = self.piece.split().freeze();
        let sent = self.sender.0.blocking_send(PipePiece::Bytes(piece));
        sent.map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the reader has stopped"))
    }
}

impl Write for PipeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.reserve(PIECE_BYTES.saturating_sub(self.piece.len()));
        let count = bytes.len().min(PIECE_BYTES - self.piece.len());
        self.piece.extend_from_slice(&bytes[..count]);
        if self.piece.len() >= PIECE_BYTES {
            self.send()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() { Ok(()) } else { self.send() }
    }
}

/// The output of the pipe, read in blocking code or as a stream.
#[derive(Debug)]
pub(super) struct PipeReceiver {
    queue: Receiver<PipePiece>,
    piece: Bytes,
    ended: bool,
}

impl PipeReceiver {
    /// Converts to a stream, which ends in an error if the pipe broke.
    pub(super) fn stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send {
        stream::try_unfold(self, |mut pipe| async move {
            let piece = pipe.queue.recv().await;
            Ok(pipe.next_piece(piece)?.map(|bytes| (bytes, pipe)))
        })
    }

    fn next_piece(&mut self, piece: Option<PipePiece>) -> io::Result<Option<Bytes>> {
        match piece {
            Some(PipePiece::Bytes(bytes)) => Ok(Some(bytes)),
            Some(PipePiece::End) => {
                self.ended = true;
                Ok(None)
            }
            Some(PipePiece::Broken(reason)) => Err(reason),
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the writer stopped before the end")),
        }
    }
}

/// Reading blocks, so it must not happen in an async task.
impl Read for PipeReceiver {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !self.ended {
            let piece = self.queue.blocking_recv();
            self.piece = self.next_piece(piece)?.unwrap_or_default();
        }
        let count = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    #[tokio::test]
    async fn bytes_and_the_end_pass_through_the_pipe() {
        let (sender, receiver) = pipe();
        let written: Vec<u8> = (0..3 * PIECE_BYTES + 7).map(|index| (index % 251) as u8).collect();
        let bytes = written.clone();
        let writer_task = tokio::task::spawn_blocking(move || {
            let mut writer = sender.writer();
            let result = writer.write_all(&bytes);
            writer.end(result);
        });
        let pieces: Vec<_> = receiver.stream().map(|piece| piece.unwrap()).collect().await;
        writer_task.await.unwrap();
        assert_eq!(pieces.concat(), written);
        assert!(pieces.len() <= 4, "{}", pieces.len());
    }

    #[tokio::test]
    async fn a_broken_pipe_is_never_read_as_complete() {
        for reason in [None, Some(io::Error::other("the disk failed"))] {
            let (sender, mut receiver) = pipe();
            let message = reason.as_ref().map_or("the writer stopped before the end".to_owned(), ToString::to_string);
            assert!(sender.put(Bytes::from_static(b"half")).await);
            match reason {
                None => drop(sender),
                Some(reason) => sender.broken(reason).await,
            }
            let reader_task = tokio::task::spawn_blocking(move || {
                let mut read = Vec::new();
                (receiver.read_to_end(&mut read).unwrap_err().to_string(), read)
            });
            assert_eq!(reader_task.await.unwrap(), (message, b"half".to_vec()));
        }
    }

    #[tokio::test]
    async fn a_writer_fails_when_the_reader_has_stopped() {
        let (sender, receiver) = pipe();
        drop(receiver);
        let writer_task = tokio::task::spawn_blocking(move || sender.writer().write_all(&vec![0; 2 * PIECE_BYTES]));
        assert_eq!(writer_task.await.unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
