package fencing

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/evictd/evictd/tests/controlplane"
	"github.com/evictd/evictd/tests/daemon"
)

// Namespace is that of evictd-controller and its configuration.
const Namespace = "evictd"

// Executable is the path of the evictd-controller that `make build` builds, relative to the module's root.
const Executable = ".build/evictd-controller"

// Controller is a running evictd-controller.
type Controller struct {
	*daemon.Process
	log string
}

// Log returns what it has logged.
func (c *Controller) Log() string {
	b, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// manifests are the files of deploy/kubernetes/controller that a controller outside of the cluster needs.
var manifests = []string{"crd/ha.k8s.io_nodefences.yaml", "rbac.yaml", "drills.yaml"}

// Install creates the namespace, the CRD and the rights of evictd-controller. The root is that of the module.
func (c *Cluster) Install(ctx context.Context, root string) error {
	namespace := fields{"metadata": fields{"name": Namespace}}
	if err := c.Admin.Create(ctx, "/api/v1/namespaces", namespace); err != nil {
		return fmt.Errorf("install evictd-controller: %w", err)
	}
	for _, name := range manifests {
		manifest, err := os.ReadFile(filepath.Join(root, "deploy/kubernetes/controller", name))
		if err != nil {
			return fmt.Errorf("install evictd-controller: %w", err)
		}
		if err := c.Admin.Apply(ctx, manifest); err != nil {
			return fmt.Errorf("install evictd-controller: %s: %w", name, err)
		}
	}
	return c.poll(ctx, "the resource nodefences", func() (bool, error) {
		err := c.Admin.Get(ctx, fencePath, &struct{}{})
		return err == nil, err
	})
}

// StartController starts evictd-controller with the rights of its service account.
func (c *Cluster) StartController(executable, identity string, args ...string) (*Controller, error) {
	config, err := c.Kubeconfig("evictd-controller", controllerToken)
	if err != nil {
		return nil, err
	}
	address, err := controlplane.FreeAddress()
	if err != nil {
		return nil, err
	}
	p := &Controller{log: filepath.Join(c.Dir, identity+".log")}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start evictd-controller: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(executable, append([]string{
		"--kubeconfig", config, "--namespace", Namespace, "--metrics-address", address, "--identity", identity,
	}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if p.Process, err = daemon.StartService(cmd); err != nil {
		return nil, fmt.Errorf("start evictd-controller: %w", err)
	}
	c.controller = p
	return p, nil
}
