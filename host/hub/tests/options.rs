//! The environment's variables.

use prl_hub::HubOptions;
use tempfile::TempDir;

#[test]
fn the_environment_means_what_it_means_in_python() {
    let vars = |pairs: &'static [(&str, &str)]| {
        HubOptions::from_vars(move |name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    };
    let o = vars(&[("HOME", "/h")]);
    assert_eq!((o.cache.unwrap(), o.endpoint.as_str()), ("/h/.cache/huggingface/hub".into(), "https://huggingface.co"));
    assert!(!o.offline && o.token.is_none());
    let o = vars(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("HF_HUB_OFFLINE", "1"), ("HF_TOKEN", " t ")]);
    assert_eq!((o.cache.unwrap(), o.token.unwrap(), o.offline), ("/x/huggingface/hub".into(), "t".into(), true));
    let o = vars(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c"), ("HF_HUB_OFFLINE", "0"), ("HF_ENDPOINT", "http://m/")]);
    assert_eq!((o.cache.unwrap(), o.endpoint.as_str(), o.offline), ("/c".into(), "http://m", false));
    assert!(vars(&[]).cache.is_none());
    let home = TempDir::new().unwrap();
    std::fs::write(home.path().join("token"), "stored\n").unwrap();
    let path = home.path().display().to_string();
    assert_eq!(HubOptions::from_vars(|n| (n == "HF_HOME").then(|| path.clone())).token.unwrap(), "stored");
}
