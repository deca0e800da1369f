//! What the host does for an environment on request: model calls, published files, a scratch map, HTTP. Each needs a
//! grant in the run's configuration. Natively there is no host; tests put a stand-in in its place with
//! [`testing::serve`](crate::testing::serve).
//!
//! A component imports what its code calls, so calling nothing here keeps it free of grants.

use crate::{Error, ErrorCode, Message, Result};
use std::cell::RefCell;

/// What takes the host's place in native tests. Each call has a default that refuses.
pub trait Services {
    /// [`llm`].
    fn llm(&self, request: &llm::Request) -> Result<llm::Response> {
        let _ = request;
        Err(absent("llm"))
    }

    /// [`asset`]: the whole file.
    fn asset(&self, name: &str) -> Result<Vec<u8>> {
        let _ = name;
        Err(absent("assets"))
    }

    /// [`http::fetch`].
    fn http(&self, request: &http::Request) -> Result<http::Response> {
        let _ = request;
        Err(absent("http"))
    }
}

fn absent(service: &str) -> Error {
    Error::new(ErrorCode::Denied, format!("there is no `{service}` outside a host; see `prl_env::testing::serve`"))
}

thread_local! {
    pub(crate) static STAND_IN: RefCell<Option<Box<dyn Services>>> = const { RefCell::new(None) };
}

#[cfg(not(target_arch = "wasm32"))]
fn stand_in<T>(service: &str, call: impl FnOnce(&dyn Services) -> Result<T>) -> Result<T> {
    STAND_IN.with_borrow(|services| match services {
        Some(services) => call(services.as_ref()),
        None => Err(absent(service)),
    })
}

pub mod llm {
    //! Model calls: a judge, a user simulator, an opponent. Grant `llm`; the roles are declared in
    //! [`Info::roles`](crate::Info) and given models in the run's configuration.

    use super::{Message, Result};
    pub use crate::bindings::prl::env::llm::{Request, Response};

    impl Request {
        /// A plain request.
        pub fn new(role: &str, messages: Vec<Message>) -> Self {
            Request {
                role: role.into(),
                messages,
                tools: Vec::new(),
                max_tokens: None,
                temperature: None,
                options: None,
            }
        }
    }

    /// Asks the model of `role`.
    ///
    /// # Errors
    /// No grant, no such role, or a model that does not answer (worth another try).
    pub fn generate(request: &Request) -> Result<Response> {
        #[cfg(target_arch = "wasm32")]
        return crate::bindings::prl::env::llm::generate(request);
        #[cfg(not(target_arch = "wasm32"))]
        super::stand_in("llm", |services| services.llm(request))
    }

    /// Asks side by side; answers in the order of the requests.
    pub fn generate_many(requests: &[Request]) -> Vec<Result<Response>> {
        #[cfg(target_arch = "wasm32")]
        return crate::bindings::prl::env::llm::generate_many(requests);
        #[cfg(not(target_arch = "wasm32"))]
        requests.iter().map(generate).collect()
    }
}

/// A whole file that is published with the component. Grant `assets`.
///
/// # Errors
/// No grant, or no such file.
pub fn asset(name: &str) -> Result<Vec<u8>> {
    #[cfg(target_arch = "wasm32")]
    {
        // Below the host's bound on one answer.
        const CHUNK: u32 = 1 << 20;
        let mut bytes = Vec::new();
        loop {
            let chunk = crate::bindings::prl::env::assets::read(name, bytes.len() as u64, CHUNK)?;
            let last = chunk.len() < CHUNK as usize;
            bytes.extend(chunk);
            if last {
                return Ok(bytes);
            }
        }
    }
    #[cfg(not(target_arch = "wasm32"))]
    stand_in("assets", |services| services.asset(name))
}

pub mod kv {
    //! A bounded scratch map that outlives instances. Grant `kv`. Natively it is a map of the thread's own.

    use super::Result;

    #[cfg(not(target_arch = "wasm32"))]
    thread_local! {
        static MAP: std::cell::RefCell<std::collections::HashMap<String, Vec<u8>>> = Default::default();
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// No grant.
    pub fn get(key: &str) -> Result<Option<Vec<u8>>> {
        #[cfg(target_arch = "wasm32")]
        return crate::bindings::prl::env::kv::get(key);
        #[cfg(not(target_arch = "wasm32"))]
        Ok(MAP.with_borrow(|map| map.get(key).cloned()))
    }

    /// Sets or, with `None`, removes the value of `key`.
    ///
    /// # Errors
    /// No grant, or the map is full.
    pub fn set(key: &str, value: Option<&[u8]>) -> Result<()> {
        #[cfg(target_arch = "wasm32")]
        return crate::bindings::prl::env::kv::set(key, value);
        #[cfg(not(target_arch = "wasm32"))]
        {
            MAP.with_borrow_mut(|map| match value {
                Some(value) => map.insert(key.to_owned(), value.to_vec()),
                None => map.remove(key),
            });
            Ok(())
        }
    }
}

pub mod http {
    //! HTTP to the addresses that the run's configuration lists. Grant `http`.

    use super::Result;
    pub use crate::bindings::prl::env::http::{Request, Response};

    /// Sends a request; any status is a response.
    ///
    /// # Errors
    /// No grant, an address that is not listed, or no answer.
    pub fn fetch(request: &Request) -> Result<Response> {
        #[cfg(target_arch = "wasm32")]
        return crate::bindings::prl::env::http::fetch(request);
        #[cfg(not(target_arch = "wasm32"))]
        super::stand_in("http", |services| services.http(request))
    }
}
