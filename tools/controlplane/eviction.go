// Package eviction is all that kube-controller-manager calls of the kubelet's package of this name:
// tests/support/controlplane/build.py puts it in that one's place, which imports the rest of the kubelet.
package eviction

import v1 "k8s.io/api/core/v1"

// PodIsEvicted tells whether the kubelet has evicted the pod (k8s.io/kubernetes/pkg/kubelet/eviction).
func PodIsEvicted(status v1.PodStatus) bool {
	return status.Phase == v1.PodFailed && status.Reason == "Evicted"
}
