//! A connection whose first bytes have already been read.

use std::io::Result;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Length of the connection preface of HTTP/2, in bytes.
const PREFACE: usize = 24;

pub struct Begun<Stream> {
    first: [u8; PREFACE],
    given: usize,
    stream: Stream,
}

impl<Stream: AsyncRead + Unpin> Begun<Stream> {
    /// Wait until a client has sent as many bytes as the preface of HTTP/2 has.
    pub async fn of(mut stream: Stream) -> Result<Self> {
        let mut first = [0; PREFACE];
        stream.read_exact(&mut first).await?;
        Ok(Begun { first, given: 0, stream })
    }
}

impl<Stream: AsyncRead + Unpin> AsyncRead for Begun<Stream> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        if self.given == PREFACE {
            return Pin::new(&mut self.stream).poll_read(context, to);
        }
        let size = to.remaining().min(PREFACE - self.given);
        to.put_slice(&self.first[self.given..self.given + size]);
        self.given += size;
        Poll::Ready(Ok(()))
    }
}

impl<Stream: AsyncWrite + Unpin> AsyncWrite for Begun<Stream> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
