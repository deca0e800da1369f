//! Puts an [`Environment`] behind the generated bindings. Owns the one configured environment of an instance, the
//! panic hook and the order of calls; must not know any particular environment.

use crate::bindings::exports::prl::env::environment as wit;
use crate::{Environment, Error, ErrorCode, Result, Rollout, log};
use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Once;

thread_local! {
    /// The configured environment; an instance holds exactly one.
    static CONFIGURED: RefCell<Option<Rc<dyn Any>>> = const { RefCell::new(None) };
}

/// The component around `E`.
pub struct Adapter<E>(PhantomData<E>);

/// Panics carry no text out of a sandbox by themselves, so the hook sends it to the log first.
fn enter() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        if cfg!(target_arch = "wasm32") {
            std::panic::set_hook(Box::new(|panic| log::error(&panic.to_string())));
        }
    });
}

fn configured<E: Environment>() -> Result<Rc<E>> {
    let any = CONFIGURED.with_borrow(|slot| slot.clone());
    any.and_then(|any| any.downcast::<E>().ok())
        .ok_or_else(|| Error::new(ErrorCode::InvalidState, "called before `configure`"))
}

impl<E: Environment> wit::Guest for Adapter<E> {
    type Rollout = RolloutAdapter<E>;

    fn describe() -> wit::Info {
        enter();
        configured::<E>().map_or_else(|_| E::describe(), |environment| environment.info())
    }

    fn configure(args: String) -> Result<()> {
        enter();
        let environment: Rc<dyn Any> = Rc::new(E::configure(&args)?);
        CONFIGURED.set(Some(environment));
        Ok(())
    }

    fn get_task(split: String, index: u64, seed: u64) -> Result<wit::Task> {
        configured::<E>()?.task(&split, index, seed)
    }

    fn score_group(task: wit::Task, members: Vec<wit::Finished>) -> Result<Vec<wit::Score>> {
        configured::<E>()?.score_group(task, members)
    }
}

/// The resource type of `E`'s rollouts.
pub struct RolloutAdapter<E: Environment>(RefCell<E::Rollout>);

impl<E: Environment> wit::GuestRollout for RolloutAdapter<E> {
    fn open(task: wit::Task, context: wit::RolloutContext) -> Result<wit::Rollout> {
        let rollout = configured::<E>()?.open(task, context)?;
        Ok(wit::Rollout::new(RolloutAdapter::<E>(RefCell::new(rollout))))
    }

    fn start(&self) -> Result<wit::Turn> {
        self.0.borrow_mut().start()
    }

    fn step(&self, completion: wit::Completion) -> Result<wit::Turn> {
        self.0.borrow_mut().step(completion)
    }

    fn score(&self, truncated: Option<String>) -> Result<wit::Score> {
        self.0.borrow_mut().score(truncated.as_deref())
    }
}
