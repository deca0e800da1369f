//! Where a server's new weights come from: folders, and NCCL. Owns that they are of the model that is served, on the device
//! that its engine runs on; must not know HTTP.

use super::snapshot;
use crate::assets;
use crate::compute::Compute;
use crate::logging;
use prl_model::{Adapter, CONFIG_FILE, Communicator, Gpu, ModelConfig, Receiver, Seat, Snapshot};
use prl_server::Weights;
use prl_types::PolicyVersion;
use serde_json::Value;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// All of its ways.
pub struct NewWeights {
    compute: Compute,
    shape: ModelConfig,
    context: usize,
    /// None where weights cannot come over NCCL.
    receiver: Option<Arc<dyn Receiver>>,
    /// None before one was joined and once it was left.
    communicator: Mutex<Option<Communicator>>,
}

impl NewWeights {
    /// Those that follow `first`, of a model of this shape and for sequences of up to `context` tokens.
    pub fn after(first: &dyn Snapshot, compute: Compute, shape: ModelConfig, context: usize) -> Self {
        NewWeights { compute, shape, context, receiver: first.receiver(), communicator: Mutex::default() }
    }

    /// `whose` is where the other shape is from.
    fn check_shape(&self, shape: ModelConfig, whose: &str) -> Result<(), String> {
        // How weights were made, and what else the file says, is none of their shape.
        let (initializer_range, raw) = (shape.initializer_range, shape.raw.clone());
        if shape == (ModelConfig { initializer_range, raw, ..self.shape.clone() }) {
            return Ok(());
        }
        Err(format!(
            "the model {whose} is another one than is served: it is {}, not {}, or differs in another number of its config.json",
            logging::shape(&shape),
            logging::shape(&self.shape)
        ))
    }
}

impl Weights for NewWeights {
    fn load(&self, dir: &Path) -> Result<Arc<dyn Snapshot>, String> {
        let shape = ModelConfig::load(dir).map_err(|e| e.to_string())?;
        self.check_shape(shape, &format!("in {}", dir.display()))?;
        let mut compute = self.compute.clone();
        let decoder = assets::decoder(dir, None, compute.home()).map_err(|failure| failure.text)?;
        // What is made on the way is freed within, too.
        Gpu::setting_up(|| snapshot(&mut compute, decoder, self.context)).map_err(|failure| failure.text)
    }

    fn adapter(&self, dir: &Path) -> Result<Adapter, String> {
        Adapter::load(dir, &self.shape).map_err(|e| e.to_string())
    }

    fn join(&self, seat: Seat, model: &Value) -> Result<(), String> {
        let (Some(gpu), Some(_)) = (self.compute.gpu(), &self.receiver) else {
            return Err(format!(
                "this server samples on {}, and NCCL goes from GPU to GPU; its weights can come from a folder",
                self.compute.device
            ));
        };
        let shape = ModelConfig::parse(&model.to_string(), Path::new(CONFIG_FILE)).map_err(|e| e.to_string())?;
        self.check_shape(shape, "of the trainer")?;
        let mut held = self.communicator.lock().unwrap_or_else(PoisonError::into_inner);
        *held = None;
        *held = Some(gpu.join(seat).map_err(|e| e.to_string())?);
        Ok(())
    }

    fn receive(&self, version: PolicyVersion) -> Result<Arc<dyn Snapshot>, String> {
        let mut held = self.communicator.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(receiver), Some(joined)) = (&self.receiver, held.as_ref()) else {
            return Err("the communicator was left, or never joined: ask the server in with `/init_broadcaster`".into());
        };
        receiver.receive(joined, version.0).map_err(|e| {
            *held = None;
            e.to_string()
        })
    }
}
