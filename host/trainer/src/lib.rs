//! Loss components, optimisers, schedules, and the gradient step.
