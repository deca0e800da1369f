//! Over a real socket: callers who go away, and the end of the server.

use crate::bench::{Bench, folder};
use serde_json::json;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

const PATIENCE: Duration = Duration::from_secs(30);

async fn until(mut done: impl FnMut() -> bool) {
    let poll = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, poll).await.expect("it does not happen");
}

struct Served {
    bench: Bench,
    address: std::net::SocketAddr,
    stop: oneshot::Sender<()>,
    done: tokio::task::JoinHandle<std::io::Result<()>>,
}

async fn served(grace: Duration) -> Served {
    let mut bench = Bench::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, told) = oneshot::channel::<()>();
    let engine = bench.engine.take().unwrap();
    let end = move || engine.shutdown();
    let told = async move { drop(told.await) };
    let done = tokio::spawn(prl_server::serve(listener, bench.router.clone(), told, grace, end));
    Served { bench, address, stop, done }
}

impl Served {
    async fn ask(&self, path: &str, body: serde_json::Value) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await.unwrap();
        stream
    }
}

async fn rest(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    // The other end may just close.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut text)).await.expect("no end");
    String::from_utf8_lossy(&text).into_owned()
}

fn long(stream: bool) -> serde_json::Value {
    json!({"token_ids": [65], "sampling_params": {"ignore_eos": true, "max_tokens": 500, "n": 2}, "stream": stream})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_goes_away_is_not_sampled_for() {
    let served = served(Duration::from_secs(5)).await;
    let stats = || served.bench.handle.stats();
    for (stream, cancelled) in [(false, 2), (true, 4)] {
        served.bench.slow(Duration::from_millis(20));
        let mut connection = served.ask("/inference/v1/generate", long(stream)).await;
        if stream {
            let mut some = [0; 400];
            connection.read_exact(&mut some).await.unwrap();
            assert!(some.starts_with(b"HTTP/1.1 200 OK"));
        }
        until(|| stats().running == 2).await;
        drop(connection);
        until(|| stats().running == 0).await;
        assert_eq!((stats().cancelled, stats().finished), (cancelled, 0));
    }
    let (_, metrics) = served.bench.get("/metrics").await;
    assert!(metrics.contains("finished_reason=\"abort\"} 4"), "{metrics}");
    // And the server is there for others.
    served.bench.slow(Duration::ZERO);
    let short = json!({"token_ids": [65], "sampling_params": {"max_tokens": 2}});
    let mut connection = served.ask("/inference/v1/generate", short).await;
    let mut some = [0; 15];
    connection.read_exact(&mut some).await.unwrap();
    assert_eq!(&some, b"HTTP/1.1 200 OK");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_goes_through_though_its_caller_went_away() {
    let served = served(Duration::from_secs(5)).await;
    served.bench.slow(Duration::from_millis(100));
    let connection = served.ask("/update_weights", json!({"weight_dir": folder(), "version": 5})).await;
    until(|| served.bench.loads.load(Ordering::SeqCst) == 1).await;
    drop(connection);
    until(|| served.bench.handle.stats().version.0 == 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_lets_requests_finish_and_ends_those_that_take_too_long() {
    let one = served(PATIENCE).await;
    one.bench.slow(Duration::from_millis(1));
    let connection = one.ask("/inference/v1/generate", long(false)).await;
    until(|| one.bench.handle.stats().running == 2).await;
    one.stop.send(()).unwrap();
    let answer = rest(connection).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("\"finish_reason\":\"length\""), "{answer}");
    one.done.await.unwrap().unwrap();
    assert!(TcpStream::connect(one.address).await.is_err());

    let other = served(Duration::from_millis(50)).await;
    other.bench.slow(Duration::from_millis(20));
    let whole = other.ask("/inference/v1/generate", long(false)).await;
    let pieces = other.ask("/inference/v1/generate", long(true)).await;
    until(|| other.bench.handle.stats().running == 4).await;
    other.stop.send(()).unwrap();
    let (whole, pieces) = tokio::join!(rest(whole), rest(pieces));
    assert!(whole.starts_with("HTTP/1.1 503") && whole.contains("engine_ended"), "{whole}");
    assert!(pieces.contains("engine_ended") && pieces.contains("data: [DONE]"), "{pieces}");
    other.done.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_http_harms_nobody() {
    let served = served(Duration::from_secs(5)).await;
    for bytes in [
        &b"GARBAGE\r\n\r\n"[..],
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: abc\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"pro",
        b"\xff\xfe\x00",
    ] {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let answer = rest(stream).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    assert_eq!(served.bench.get("/health").await.0, 200);
}
