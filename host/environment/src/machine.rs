//! Engines: how instances get their memory, and whether their instructions are counted. Owns wasmtime's configuration
//! and the clock that interrupts guests; must not know any call of the contract.

use crate::state::State;
use crate::{Limits, LoadError, contract};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use wasmtime::component::Linker;
use wasmtime::{Config, Enabled, Engine, EngineWeak, InstanceAllocationStrategy, PoolingAllocationConfig};

/// How often a running guest gives way and can be stopped.
const TICK: Duration = Duration::from_millis(10);
/// Stack of a guest, and of the fiber it runs on.
const WASM_STACK_BYTES: usize = 1 << 20;
const FIBER_STACK_BYTES: usize = 2 << 20;
/// Components up to this size are small: their memory is copied rather than mapped, which takes fewer of the system's
/// mappings, and comes from a pool while that has room. Larger ones (interpreters) start many times faster from a
/// mapped image.
const SMALL_BYTES: u64 = 1 << 20;
/// Places of the pool, and how many of them keep their pages while they are free.
const POOL: u32 = 1000;
const WARM: u32 = 100;
/// How far into a guest's memory pages are kept: its stack, which Rust puts into the first MiB, and some heap.
const KEEP_BYTES: usize = 5 << 18;

/// How an engine gives memory to instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// From a pool of [`POOL`] places for small components.
    Pooled,
    /// For small components, as it is needed.
    Small,
    /// For all others, and for those whose instructions are counted.
    Roomy { metered: bool },
}

/// An engine, and what it offers to components.
pub struct Machine {
    pub engine: Engine,
    pub linker: Linker<State>,
}

impl Machine {
    fn start(kind: Kind) -> Result<Self, wasmtime::Error> {
        let mut config = Config::new();
        config
            .wasm_component_model(true)
            .consume_fuel(kind == Kind::Roomy { metered: true })
            .epoch_interruption(true)
            .cranelift_nan_canonicalization(true)
            .relaxed_simd_deterministic(true)
            .memory_init_cow(matches!(kind, Kind::Roomy { .. }))
            .max_wasm_stack(WASM_STACK_BYTES)
            .async_stack_size(FIBER_STACK_BYTES);
        if kind == Kind::Pooled {
            config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool()));
        }
        let engine = Engine::new(&config)?;
        let mut linker = Linker::new(&engine);
        contract::link(&mut linker)?;
        Ok(Machine { engine, linker })
    }
}

/// Room for components as Rust compilers make them; others do without the pool.
fn pool() -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(POOL)
        .total_core_instances(4 * POOL)
        .total_memories(POOL)
        .total_tables(4 * POOL)
        .total_stacks(POOL)
        .max_core_instances_per_component(8)
        .max_memories_per_component(1)
        .max_tables_per_component(4)
        .table_elements(4096)
        .max_core_instance_size(64 << 10)
        .max_component_instance_size(64 << 10)
        .max_unused_warm_slots(WARM)
        .table_keep_resident(1 << 20);
    if PoolingAllocationConfig::is_pagemap_scan_available() {
        // The kernel tells which pages were written to: those are cleared and kept, which saves the next guest its
        // page faults.
        pool.pagemap_scan(Enabled::Yes).linear_memory_keep_resident(KEEP_BYTES);
    }
    pool
}

/// The engines of a sandbox, each made when it is first needed.
pub struct Machines {
    made: Mutex<BTreeMap<Kind, Option<Arc<Machine>>>>,
    ticked: Arc<Mutex<Vec<EngineWeak>>>,
}

impl Machines {
    /// Starts the ticker, which lives as long as this does.
    pub fn new() -> std::io::Result<Self> {
        let ticked = Arc::new(Mutex::new(Vec::new()));
        let seen: Weak<Mutex<Vec<EngineWeak>>> = Arc::downgrade(&ticked);
        let tick = move || {
            while let Some(engines) = seen.upgrade() {
                let engines: Vec<Engine> = engines
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .iter()
                    .filter_map(EngineWeak::upgrade)
                    .collect();
                engines.iter().for_each(Engine::increment_epoch);
                drop(engines);
                std::thread::sleep(TICK);
            }
        };
        std::thread::Builder::new().name("env-ticker".into()).spawn(tick)?;
        Ok(Machines { made: Mutex::default(), ticked })
    }

    fn get(&self, kind: Kind) -> Result<Option<Arc<Machine>>, LoadError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(machine) = made.get(&kind) {
            return Ok(machine.clone());
        }
        let machine = match Machine::start(kind) {
            Ok(machine) => {
                self.ticked.lock().unwrap_or_else(PoisonError::into_inner).push(machine.engine.weak());
                Some(Arc::new(machine))
            }
            Err(error) if kind == Kind::Pooled => {
                tracing::debug!("environments do without a pool of instances: {error:#}");
                None
            }
            Err(error) => return Err(LoadError::Sandbox(error.to_string())),
        };
        made.insert(kind, machine.clone());
        Ok(machine)
    }

    /// The engines for a component of so many bytes, in the order in which they are asked for room; at least one.
    pub fn for_component(&self, limits: &Limits, bytes: u64) -> Result<Vec<Arc<Machine>>, LoadError> {
        let kinds: &[Kind] = match limits.fuel {
            Some(_) => &[Kind::Roomy { metered: true }],
            None if bytes <= SMALL_BYTES => &[Kind::Pooled, Kind::Small],
            None => &[Kind::Roomy { metered: false }],
        };
        let machines: Result<Vec<_>, LoadError> = kinds.iter().map(|kind| self.get(*kind)).collect();
        Ok(machines?.into_iter().flatten().collect())
    }
}
