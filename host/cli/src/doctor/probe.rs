//! Looking at CUDA in a process of its own: a library that crashes or hangs while it is loaded costs that process only. Owns
//! the lines between the two and how long the answer may take.

use super::cuda::{Cuda, Part, Told, look};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// For one library.
const PATIENCE: Duration = Duration::from_secs(10);
/// A driver that wakes many GPUs takes its time, and so does opening one.
const LONG: Duration = Duration::from_secs(60);

/// The other process: tells what it sees, a line a piece.
pub fn tell(open: bool) {
    let mut out = std::io::stdout();
    look(open, &mut |told| {
        if let Ok(line) = serde_json::to_string(&told) {
            // Nobody reading means that nobody waits any more.
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        }
    });
}

/// What the other process sees.
pub fn ask(open: bool) -> Cuda {
    let binary = std::env::current_exe();
    let started = binary.and_then(|binary| {
        let mut command = Command::new(binary);
        command.args(["doctor", "--probe"]).args(open.then_some("--cuda"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
    });
    match started {
        Ok(child) => listen(child, [PATIENCE, LONG]),
        Err(error) => {
            let part =
                Part::missing("CUDA", format!("it could not be looked at: {error}"), "start `prl doctor` again".into());
            Cuda { parts: vec![part], ..Cuda::default() }
        }
    }
}

fn listen(mut child: Child, [patience, long]: [Duration; 2]) -> Cuda {
    let (sender, lines) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Libraries may print lines of their own.
                let Ok(told) = serde_json::from_str::<Told>(&line) else { continue };
                if sender.send(told).is_err() {
                    break;
                }
            }
        });
    } else {
        drop(sender);
    }
    let mut cuda = Cuda::default();
    let mut next = "CUDA".to_string();
    let wrong = loop {
        let patience = if next == "driver" || next.starts_with("opening") { long } else { patience };
        match lines.recv_timeout(patience) {
            Ok(Told::Next(name)) => next = name,
            Ok(Told::Part(part)) => cuda.parts.push(part),
            Ok(Told::Optional(part)) => cuda.optional.push(part),
            Ok(Told::Gpu(gpu)) => cuda.gpus.push(gpu),
            Err(RecvTimeoutError::Timeout) => {
                let _ = child.kill();
                let _ = child.wait();
                break Some(format!("no answer within {} s", patience.as_secs_f64()));
            }
            Err(RecvTimeoutError::Disconnected) => match child.wait() {
                Ok(status) if status.success() => break None,
                Ok(status) => break Some(format!("it crashed while it was loaded ({})", ended(status))),
                Err(error) => break Some(error.to_string()),
            },
        }
    };
    if let Some(wrong) = wrong {
        let remedy = "the library's file may be damaged, or not be that library: install it again";
        cuda.parts.push(Part::missing(&next, wrong, remedy.into()));
    }
    cuda
}

fn ended(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Cuda {
        let child = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        listen(child, [Duration::from_millis(300), Duration::from_millis(300)])
    }

    #[test]
    fn what_is_told_before_a_crash_or_a_hang_is_kept() {
        let part = r#"{"Part":{"name":"driver","found":true,"detail":"d","remedy":null}}"#;
        let begin =
            format!("echo noise; echo '{{\"Next\":\"driver\"}}'; echo '{part}'; echo '{{\"Next\":\"cuBLASLt\"}}';");
        let whole = shell(&format!("echo '{part}'"));
        assert_eq!(whole.parts.len(), 1);
        for (end, naming) in
            [("kill -SEGV $$", "signal 11"), ("exit 3", "exit status: 3"), ("exec sleep 5", "no answer within 0.3 s")]
        {
            let cuda = shell(&format!("{begin} {end}"));
            assert_eq!(cuda.parts.len(), 2, "{end}");
            assert!(cuda.parts[0].found && cuda.parts[0].name == "driver");
            assert!(cuda.parts[1].name == "cuBLASLt" && cuda.parts[1].detail.contains(naming), "{:?}", cuda.parts[1]);
        }
    }
}
