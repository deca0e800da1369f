//! Group relative policy optimisation.
