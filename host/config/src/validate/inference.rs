//! Rules of `prl inference`.

use super::exact;
use crate::loaded::Validator;
use crate::tables::InferenceRun;

/// Reports what does not fit together.
pub(crate) fn inference(config: &InferenceRun, v: &mut Validator<'_>) {
    exact(config.exact, config.kernels, v);
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
