"""The ConsumerGroup resource, version v1alpha1: its types, validation and CRD."""
