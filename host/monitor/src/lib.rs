//! Metric sinks and console lines.
