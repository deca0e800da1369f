//! Rules of `prl inference`.

use crate::loaded::Validator;
use crate::tables::{Device, InferenceRun, Kernels};

/// Reports what does not fit together.
pub(crate) fn inference(config: &InferenceRun, v: &mut Validator<'_>) {
    if config.exact == Some(true) && matches!(config.device, Device::Cuda(_)) {
        let message = "`exact = true` is not supported on a GPU yet: set `device = \"cpu\"`, or leave `exact` out";
        v.fail(&["exact", "device"], message);
    }
    if config.exact == Some(true) && config.kernels == Kernels::Reference {
        let message = "`exact = true` needs `kernels = \"fast\"`: the reference kernels promise no bits";
        v.fail(&["exact", "kernels"], message);
    }
    for (key, value) in [
        ("served_model_name", &config.served_model_name),
        ("server.host", &config.server.host),
        ("server.api_key_var", &config.server.api_key_var),
        ("server.admin_api_key_var", &config.server.admin_api_key_var),
    ] {
        if value.as_ref().is_some_and(String::is_empty) {
            v.fail(&[key], format!("`{key}` is empty: name something, or leave it out"));
        }
    }
}
