"""The admission webhook: refuses at `kubectl apply` what the operator would refuse with InvalidSpec."""
