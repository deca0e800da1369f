//! WASI 0.2 as an environment meets it: everything is denied, and the same each time. Owns what takes the place of
//! clocks, randomness and standard output for guests whose compiler or interpreter brings WASI along; must not know the
//! contract. None of it is a capability: nothing leaves the sandbox but lines for the log.
//!
//! Functions are linked by name and type, whatever the patch version. What has a deterministic answer gets it; for
//! the rest the function's type decides: an error code for "denied" where it has one, nothing where it may give
//! nothing, else the guest is stopped with the function's name.

use crate::log::{Log, LogLevel};
use crate::state::State;
use std::collections::BTreeMap;
use wasmtime::component::types::{ComponentFunc, ComponentItem, Type};
use wasmtime::component::{Component, Linker, ResourceDynamic, ResourceType, Val};
use wasmtime::{AsContextMut, Engine, Result, StoreContextMut, bail};

/// Interfaces of this package are linked here.
const PREFIX: &str = "wasi:";
/// Versions that are.
const TRACK: &str = "@0.2.";

/// Where the wall clock starts, seconds since 1970: the first of January 2000.
const EPOCH_SECONDS: u64 = 946_684_800;
/// What a look at a clock takes.
const LOOK_NS: u64 = 1_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Most random bytes of one call, and most bytes of one write.
const MAX_BYTES: u64 = 1 << 16;
/// Most timers of one instance.
const MAX_TIMERS: usize = 1 << 10;
/// Longest line of standard output that is put together from several writes.
const MAX_LINE: usize = 8 << 10;

/// What an instance has in place of a machine. Clocks count: call n of a rollout starts in second n, a look takes a
/// microsecond, a sleep is over at once.
#[derive(Debug, Default)]
pub struct Wasi {
    random: u64,
    now_ns: u64,
    /// When the timers that are alive go off.
    timers: BTreeMap<u32, u64>,
    next_timer: u32,
    /// Unfinished lines of standard output and standard error.
    lines: [Vec<u8>; 2],
}

impl Wasi {
    pub fn begin(&mut self, seed: u64, ordinal: u64) {
        self.random = mix(seed ^ mix(ordinal.wrapping_add(GOLDEN)));
        self.now_ns = ordinal.saturating_mul(SECOND_NS);
    }

    /// Writes unfinished lines.
    pub fn flush(&mut self, log: &mut Log) {
        for stream in [Stream::Out, Stream::Error] {
            self.line(stream, log);
        }
    }

    fn line(&mut self, stream: Stream, log: &mut Log) {
        let line = std::mem::take(&mut self.lines[stream as usize]);
        if !line.is_empty() {
            log.emit(stream.level(), &String::from_utf8_lossy(&line), &[]);
        }
    }

    fn write(&mut self, stream: Stream, bytes: impl Iterator<Item = u8>, log: &mut Log) {
        for byte in bytes {
            if byte != b'\n' {
                self.lines[stream as usize].push(byte);
            }
            if byte == b'\n' || self.lines[stream as usize].len() >= MAX_LINE {
                self.line(stream, log);
            }
        }
    }

    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(GOLDEN);
        mix(self.random)
    }

    fn look(&mut self) -> u64 {
        self.now_ns = self.now_ns.saturating_add(LOOK_NS);
        self.now_ns
    }

    fn timer(&mut self, at_ns: u64) -> Result<u32> {
        if self.timers.len() >= MAX_TIMERS {
            bail!("it holds more than {MAX_TIMERS} timers");
        }
        self.next_timer = self.next_timer.wrapping_add(1).max(1);
        self.timers.insert(self.next_timer, at_ns);
        Ok(self.next_timer)
    }

    /// When the pollable `rep` is ready; at once unless it is a timer.
    fn due(&self, rep: u32) -> u64 {
        self.timers.get(&rep).copied().unwrap_or(0)
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's finaliser.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[derive(Clone, Copy)]
enum Stream {
    Out = 0,
    Error = 1,
}

impl Stream {
    fn level(self) -> LogLevel {
        match self {
            Stream::Out => LogLevel::Info,
            Stream::Error => LogLevel::Error,
        }
    }

    /// Streams are handed out with these numbers.
    fn of(rep: u32) -> Option<Self> {
        match rep {
            1 => Some(Stream::Out),
            2 => Some(Stream::Error),
            _ => None,
        }
    }
}

/// Whether an import is linked here.
pub fn is_wasi(import: &str) -> bool {
    import.starts_with(PREFIX) && import.contains(TRACK)
}

/// Links all WASI imports of `component`.
pub fn link(linker: &mut Linker<State>, engine: &Engine, component: &Component) -> Result<()> {
    let ty = component.component_type();
    for (interface, item) in ty.imports(engine).filter(|(name, _)| is_wasi(name)) {
        let ComponentItem::ComponentInstance(instance) = item.ty else {
            bail!("`{interface}` is imported as something else than an interface");
        };
        let mut into = linker.instance(interface)?;
        for (name, item) in instance.exports(engine) {
            match item.ty {
                ComponentItem::Resource(_) => into.resource(name, resource(name), |mut store, rep| {
                    store.data_mut().wasi.timers.remove(&rep);
                    Ok(())
                })?,
                ComponentItem::ComponentFunc(_) => {
                    let op = Op::of(interface, name);
                    let full = format!("{interface}#{name}");
                    into.func_new(name, move |mut store, ty, given, out| {
                        let mut reps = Vec::new();
                        for value in given {
                            release(store.as_context_mut(), value, &mut reps)?;
                        }
                        let answer = op.run(&full, store, &ty, given, &reps)?;
                        if let Some(out) = out.first_mut() {
                            *out = answer;
                        }
                        Ok(())
                    })?;
                }
                ComponentItem::Type(_) => {}
                _ => bail!("`{interface}` has a `{name}` of an unknown kind"),
            }
        }
    }
    Ok(())
}

/// The number that stands for a resource's type: WASI's resources have names of their own.
fn type_id(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn resource(name: &str) -> ResourceType {
    ResourceType::host_dynamic(type_id(name))
}

fn handle(store: StoreContextMut<'_, State>, rep: u32, name: &str) -> Result<Val> {
    let handle = ResourceDynamic::new_own(rep, type_id(name)).try_into_resource_any(store)?;
    Ok(Val::Resource(handle))
}

/// Takes the numbers of all handles in `value`, in order. Handles that are lent must not outlive the call.
fn release(mut store: StoreContextMut<'_, State>, value: &Val, reps: &mut Vec<u32>) -> Result<()> {
    match value {
        Val::Resource(handle) => reps.push(ResourceDynamic::try_from_resource_any(*handle, store)?.rep()),
        Val::List(values) | Val::Tuple(values) => {
            // Lists of bytes are long and hold none.
            let values = if matches!(values.first(), Some(Val::U8(_))) { &[] } else { values.as_slice() };
            values.iter().try_for_each(|value| release(store.as_context_mut(), value, reps))?;
        }
        Val::Record(fields) => {
            fields.iter().try_for_each(|(_, value)| release(store.as_context_mut(), value, reps))?;
        }
        Val::Option(Some(value)) | Val::Variant(_, Some(value)) | Val::Result(Ok(Some(value)) | Err(Some(value))) => {
            release(store, value, reps)?
        }
        _ => {}
    }
    Ok(())
}

fn rep(reps: &[u32]) -> Result<u32> {
    reps.first().copied().ok_or_else(|| wasmtime::format_err!("it passed no handle"))
}

fn number(value: Option<&Val>) -> Result<u64> {
    match value {
        Some(Val::U64(number)) => Ok(*number),
        _ => bail!("it passed something else than a number"),
    }
}

fn bytes(random: &mut Wasi, count: u64) -> Result<Val> {
    if count > MAX_BYTES {
        bail!("it asked for {count} random bytes at once");
    }
    let mut list = Vec::with_capacity(count as usize);
    while (list.len() as u64) < count {
        let left = (count as usize - list.len()).min(8);
        list.extend(random.random().to_le_bytes()[..left].iter().map(|byte| Val::U8(*byte)));
    }
    Ok(Val::List(list))
}

fn ok(value: Option<Val>) -> Val {
    Val::Result(Ok(value.map(Box::new)))
}

/// The functions with an answer of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Random,
    RandomBytes,
    RandomSeed,
    Monotonic,
    Wall,
    Resolution,
    WallResolution,
    TimerAt,
    TimerIn,
    Ready,
    Block,
    Poll,
    Stdin,
    Stdout,
    Stderr,
    Pollable,
    Network,
    Room,
    Write,
    Flush,
    /// All others: the type decides.
    Deny,
}

impl Op {
    fn of(interface: &str, name: &str) -> Self {
        let interface = interface.split('@').next().unwrap_or_default();
        match (interface.strip_prefix(PREFIX).unwrap_or_default(), name) {
            ("random/random", "get-random-u64") | ("random/insecure", "get-insecure-random-u64") => Op::Random,
            ("random/random", "get-random-bytes") | ("random/insecure", "get-insecure-random-bytes") => Op::RandomBytes,
            ("random/insecure-seed", "insecure-seed") => Op::RandomSeed,
            ("clocks/monotonic-clock", "now") => Op::Monotonic,
            ("clocks/wall-clock", "now") => Op::Wall,
            ("clocks/monotonic-clock", "resolution") => Op::Resolution,
            ("clocks/wall-clock", "resolution") => Op::WallResolution,
            ("clocks/monotonic-clock", "subscribe-instant") => Op::TimerAt,
            ("clocks/monotonic-clock", "subscribe-duration") => Op::TimerIn,
            ("io/poll", "[method]pollable.ready") => Op::Ready,
            ("io/poll", "[method]pollable.block") => Op::Block,
            ("io/poll", "poll") => Op::Poll,
            ("cli/stdin", "get-stdin") => Op::Stdin,
            ("cli/stdout", "get-stdout") => Op::Stdout,
            ("cli/stderr", "get-stderr") => Op::Stderr,
            ("sockets/instance-network", "instance-network") => Op::Network,
            ("io/streams", "[method]output-stream.check-write") => Op::Room,
            ("io/streams", "[method]output-stream.write" | "[method]output-stream.blocking-write-and-flush") => {
                Op::Write
            }
            ("io/streams", "[method]output-stream.flush" | "[method]output-stream.blocking-flush") => Op::Flush,
            ("io/streams", "[method]output-stream.subscribe" | "[method]input-stream.subscribe") => Op::Pollable,
            _ => Op::Deny,
        }
    }

    fn run(
        self,
        full: &str,
        mut store: StoreContextMut<'_, State>,
        ty: &ComponentFunc,
        given: &[Val],
        reps: &[u32],
    ) -> Result<Val> {
        let first = given.first();
        match self {
            Op::Random => Ok(Val::U64(store.data_mut().wasi.random())),
            Op::RandomBytes => bytes(&mut store.data_mut().wasi, number(first)?),
            Op::RandomSeed => {
                let wasi = &mut store.data_mut().wasi;
                Ok(Val::Tuple(vec![Val::U64(wasi.random()), Val::U64(wasi.random())]))
            }
            Op::Monotonic => Ok(Val::U64(store.data_mut().wasi.look())),
            Op::Resolution => Ok(Val::U64(LOOK_NS)),
            Op::Wall => {
                let now = store.data_mut().wasi.look();
                Ok(wall(EPOCH_SECONDS + now / SECOND_NS, now % SECOND_NS))
            }
            Op::WallResolution => Ok(wall(0, LOOK_NS)),
            Op::TimerAt | Op::TimerIn => {
                let (wasi, when) = (&mut store.data_mut().wasi, number(first)?);
                let at = if self == Op::TimerAt { when } else { wasi.now_ns.saturating_add(when) };
                let timer = wasi.timer(at)?;
                handle(store, timer, "pollable")
            }
            Op::Ready => {
                let rep = rep(reps)?;
                let wasi = &mut store.data_mut().wasi;
                let now = wasi.look();
                Ok(Val::Bool(wasi.due(rep) <= now))
            }
            Op::Block => {
                let rep = rep(reps)?;
                let wasi = &mut store.data_mut().wasi;
                wasi.now_ns = wasi.now_ns.max(wasi.due(rep));
                Ok(Val::Bool(true))
            }
            Op::Poll => Ok(poll(&mut store.data_mut().wasi, reps)),
            Op::Stdin => handle(store, 0, "input-stream"),
            Op::Stdout => handle(store, 1, "output-stream"),
            Op::Stderr => handle(store, 2, "output-stream"),
            Op::Pollable => handle(store, 0, "pollable"),
            Op::Network => handle(store, 0, "network"),
            Op::Room => Ok(ok(Some(Val::U64(MAX_BYTES)))),
            Op::Write => {
                let stream = Stream::of(rep(reps)?);
                let (Some(stream), Some(Val::List(list))) = (stream, given.get(1)) else { return deny(full, ty) };
                let State { wasi, log, .. } = store.data_mut();
                wasi.write(
                    stream,
                    list.iter().filter_map(|val| if let Val::U8(b) = val { Some(*b) } else { None }),
                    log,
                );
                Ok(ok(None))
            }
            Op::Flush => Ok(ok(None)),
            Op::Deny => deny(full, ty),
        }
    }
}

fn wall(seconds: u64, nanoseconds: u64) -> Val {
    let nanoseconds = u32::try_from(nanoseconds).unwrap_or(0);
    Val::Record(vec![("seconds".into(), Val::U64(seconds)), ("nanoseconds".into(), Val::U32(nanoseconds))])
}

/// Those that are ready; if none is, time goes on to the first that will be.
fn poll(wasi: &mut Wasi, reps: &[u32]) -> Val {
    let dues: Vec<u64> = reps.iter().map(|rep| wasi.due(*rep)).collect();
    wasi.now_ns = wasi.look().max(dues.iter().copied().min().unwrap_or(0));
    let ready = dues.iter().zip(0..).filter(|(due, _)| **due <= wasi.now_ns).map(|(_, at)| Val::U32(at));
    Val::List(ready.collect())
}

/// Words for "no", in the order in which they are preferred.
const NO: [&str; 8] = [
    "access-denied",
    "access",
    "not-permitted",
    "HTTP-request-denied",
    "not-supported",
    "unsupported",
    "closed",
    "other",
];

/// The answer of a function that does nothing here.
fn deny(full: &str, ty: &ComponentFunc) -> Result<Val> {
    let refused = || wasmtime::format_err!("it called `{full}`, which no environment may");
    let Some(result) = ty.results().next() else { return Err(refused()) };
    nothing(&result).ok_or_else(refused)
}

fn nothing(ty: &Type) -> Option<Val> {
    match ty {
        Type::Bool => Some(Val::Bool(false)),
        Type::U8 => Some(Val::U8(0)),
        Type::U16 => Some(Val::U16(0)),
        Type::U32 => Some(Val::U32(0)),
        Type::U64 => Some(Val::U64(0)),
        Type::S32 => Some(Val::S32(0)),
        Type::String => Some(Val::String(String::new())),
        Type::List(_) => Some(Val::List(Vec::new())),
        Type::Option(_) => Some(Val::Option(None)),
        Type::Result(result) => match result.err() {
            None => Some(Val::Result(Err(None))),
            Some(Type::Enum(error)) => {
                let no = NO.iter().find(|no| error.names().any(|name| name == **no))?;
                Some(Val::Result(Err(Some(Box::new(Val::Enum((*no).to_owned()))))))
            }
            Some(Type::Variant(error)) => {
                let no = NO.iter().find(|no| error.cases().any(|case| case.name == **no && case.ty.is_none()))?;
                Some(Val::Result(Err(Some(Box::new(Val::Variant((*no).to_owned(), None))))))
            }
            Some(_) => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_chance_follow_from_the_call() {
        let mut left = Wasi::default();
        let mut right = Wasi::default();
        let draw = |wasi: &mut Wasi, seed, ordinal| {
            wasi.begin(seed, ordinal);
            (wasi.random(), wasi.random(), wasi.look())
        };
        assert_eq!(draw(&mut left, 3, 1), draw(&mut right, 3, 1));
        assert_ne!(draw(&mut left, 3, 1).0, draw(&mut right, 3, 2).0);
        assert_ne!(draw(&mut left, 3, 1).0, draw(&mut right, 4, 1).0);
        assert_eq!(draw(&mut left, 3, 2).2, 2 * SECOND_NS + LOOK_NS);
    }

    #[test]
    fn timers_are_bounded() {
        let mut wasi = Wasi::default();
        let first = wasi.timer(7).unwrap();
        assert_eq!((wasi.due(first), wasi.due(first + 1)), (7, 0));
        assert!((0..MAX_TIMERS).any(|_| wasi.timer(0).is_err()));
    }

    #[test]
    fn names_are_told_apart() {
        assert!(is_wasi("wasi:cli/stdin@0.2.3") && is_wasi("wasi:cli/stdin@0.2.11"));
        assert!(!is_wasi("wasi:cli/stdin@0.3.0") && !is_wasi("prl:env/log@0.2.0"));
        assert_eq!(Op::of("wasi:clocks/wall-clock@0.2.3", "now"), Op::Wall);
        assert_eq!(Op::of("wasi:cli/exit@0.2.3", "exit"), Op::Deny);
    }
}
