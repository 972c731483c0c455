"""Setting power limits and giving them back: control, guardian, record, helpers, GPU locks."""
