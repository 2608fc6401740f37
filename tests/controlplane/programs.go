package controlplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/evictd/evictd/tests/node"
)

// Version is that of Kubernetes: the version in tests/cluster/kubernetes/go.mod.
const Version = "1.36.3"

// The programs of Kubernetes, etcd, kustomize and Helm. The kubelet has another name so that an evictd that runs on
// this machine does not take it for the kubelet of its node.
const (
	APIServer         = "kube-apiserver-" + Version
	Etcd              = "etcd-" + Version
	ControllerManager = "kube-controller-manager-" + Version
	Scheduler         = "kube-scheduler-" + Version
	Kubelet           = "node-agent-" + Version
	Kubectl           = "kubectl-" + Version
	Kustomize         = "kustomize-" + Version // the one that kubectl of this version contains
	Helm              = "helm-" + Version      // built with the libraries of this version
)

// ProgramsEnv is the environment variable with the directory of the programs, instead of that in which fetch.sh puts
// them.
const ProgramsEnv = "EVICTD_TEST_CLUSTER"

// ErrMissing means that a program was not found. tests/cluster/fetch.sh gets it.
var ErrMissing = errors.New("program not found")

// FindPrograms returns the directory of programs. The error is ErrMissing if one of them is not there.
func FindPrograms(names ...string) (string, error) {
	dir := os.Getenv(ProgramsEnv)
	if dir == "" {
		cache, err := node.CacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(cache, "cluster")
	}
	var missing []string
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return "", fmt.Errorf("%w: %s (sh tests/cluster/fetch.sh gets it)", ErrMissing, strings.Join(missing, ", "))
	}
	return dir, nil
}
