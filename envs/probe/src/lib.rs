//! An environment that uses everything there is, for tests of hosts: every import of the contract, and WASI as a
//! compiler or an interpreter would bring it along. Owns a list of commands; must not know the host.
//!
//! Each assistant turn is a command, the reply its result; `stop` ends the rollout.

use prl_env::services::{asset, http, kv, llm};
use prl_env::{Attempt, Error, Message, NoArgs, Recipe, Result, Spec, Task, Turn};

/// WASI, where there is one.
#[cfg(target_arch = "wasm32")]
mod wasi {
    #[allow(missing_docs, clippy::all)]
    mod bindings {
        wit_bindgen::generate!({ path: "wit", world: "wasi", generate_all });
    }

    use bindings::wasi::cli::{environment, exit, stderr, stdin, stdout};
    use bindings::wasi::clocks::{monotonic_clock, wall_clock};
    use bindings::wasi::filesystem::preopens;
    use bindings::wasi::io::{poll, streams};
    use bindings::wasi::random::random;
    use bindings::wasi::sockets::network::IpAddressFamily;
    use bindings::wasi::sockets::tcp_create_socket;

    fn write(stream: &streams::OutputStream, text: &str) {
        let room = stream.check_write().expect("there is room");
        assert!(room >= text.len() as u64);
        stream.write(text.as_bytes()).and_then(|()| stream.blocking_flush()).expect("it is written");
    }

    pub fn run(command: &str) -> Option<String> {
        Some(match command {
            "random" => format!("{} {:?}", random::get_random_u64(), random::get_random_bytes(9)),
            "clock" => format!("{} {:?}", monotonic_clock::now(), wall_clock::now()),
            "sleep" => {
                let before = monotonic_clock::now();
                monotonic_clock::subscribe_duration(3_600_000_000_000).block();
                let (first, second) =
                    (monotonic_clock::subscribe_duration(9_000_000), monotonic_clock::subscribe_duration(5_000_000));
                let ready = poll::poll(&[&first, &second]);
                let slept = monotonic_clock::now() - before;
                format!("{} h, {ready:?}, {}", slept / 3_600_000_000_000, second.ready())
            }
            "print" => {
                write(&stdout::get_stdout(), "one\ntwo");
                write(&stdout::get_stdout(), " and a half\n");
                write(&stderr::get_stderr(), "oh no");
                String::new()
            }
            "machine" => {
                let (vars, args) = (environment::get_environment(), environment::get_arguments());
                let read = stdin::get_stdin().read(10);
                let socket = tcp_create_socket::create_tcp_socket(IpAddressFamily::Ipv4).err();
                let folders = preopens::get_directories().len();
                let cwd = environment::initial_cwd();
                format!("{vars:?} {args:?} {cwd:?} {folders} {read:?} {socket:?}")
            }
            "exit" => {
                exit::exit(Ok(()));
                String::new()
            }
            _ => return None,
        })
    }
}

#[cfg(not(target_arch = "wasm32"))]
mod wasi {
    pub fn run(_: &str) -> Option<String> {
        None
    }
}

/// Nothing to configure.
pub struct Probe;

prl_env::export!(Probe);

impl Recipe for Probe {
    type Args = NoArgs;
    type State = ();

    fn spec() -> Spec<Self> {
        Spec::<Self>::new("probe", env!("CARGO_PKG_VERSION"), "Does what it is told.")
            .split("train", None)
            .multi_turn(1_000_000)
            .roles(&["judge"])
            .reward("turns", 1.0, |_, attempt| attempt.completions.len() as f64)
            .tags(&["test"])
    }

    fn new(_: NoArgs) -> Result<Self> {
        Ok(Probe)
    }

    fn task(&self, _: &str, _: u64, _: u64) -> Result<Task> {
        Ok(Task::new(vec![Message::user("What shall I do?")]))
    }

    fn reply(&self, attempt: &mut Attempt<Self>) -> Result<Turn> {
        // So that long rollouts take the memory of short ones.
        attempt.messages.clear();
        let said = attempt.text();
        let (command, rest) = said.split_once(' ').unwrap_or((&said, ""));
        let done = match command {
            "echo" => Ok(rest.to_owned()),
            "stop" => return Ok(Turn::terminated("told")),
            "judge" => llm::generate(&llm::Request::new("judge", vec![Message::user(rest)])).map(|r| r.message.text()),
            "judges" => {
                let requests: Vec<_> =
                    rest.split(' ').map(|word| llm::Request::new("judge", vec![Message::user(word)])).collect();
                let answers = llm::generate_many(&requests).into_iter();
                answers
                    .map(|answer| answer.map(|r| r.message.text()))
                    .collect::<Result<Vec<_>>>()
                    .map(|all| all.join(" "))
            }
            "stranger" => llm::generate(&llm::Request::new("stranger", Vec::new())).map(|r| r.message.text()),
            "asset" => asset(rest).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
            "get" => kv::get(rest).map(|value| format!("{value:?}")),
            "set" => {
                let (key, value) = rest.split_once(' ').unwrap_or((rest, ""));
                kv::set(key, Some(value.as_bytes())).map(|()| "set".into())
            }
            "fetch" => {
                let (url, headers) = (rest.to_owned(), vec![("x-probe".into(), "1".into())]);
                let request = http::Request { method: "get".into(), url, headers, body: None, timeout_ms: 5000 };
                http::fetch(&request)
                    .map(|answer| format!("{} {}", answer.status, String::from_utf8_lossy(&answer.body)))
            }
            command => wasi::run(command).ok_or_else(|| Error::internal(format!("no command `{command}`"))),
        };
        Ok(Turn::say(done.unwrap_or_else(|error| format!("{:?}: {}", error.code, error.message))))
    }
}
