package native_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/evictd/evictd/tests/node"
)

// runc is a container that runc has created in the pod's cgroup and not started: its init process waits in it.
type runc struct {
	t    *testing.T
	file string
	args []string
	id   string
}

func createWithRunc(t *testing.T, n *node.Node, p *pod) *runc {
	t.Helper()
	b, err := node.Find("")
	if err != nil {
		t.Fatal(err)
	}
	e, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	bundle := t.TempDir()
	c := &runc{t: t, file: b.Runc, args: []string{"--root", filepath.Join(bundle, "state")}, id: "created-by-runc"}
	at := p.Cgroup + "/" + c.id
	if n.Driver() == node.Systemd {
		c.args = append(c.args, "--systemd-cgroup")
		at = filepath.Base(p.Cgroup) + ":runc:" + c.id
	}
	hog, err := os.ReadFile(e.hog)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(bundle, "rootfs"), 0o755), os.WriteFile(filepath.Join(bundle, "rootfs", "hog"), hog, 0o755)); err != nil {
		t.Fatal(err)
	}
	if out, err := c.run(t.Context(), "spec", "--bundle", bundle); err != nil {
		t.Fatalf("runc spec: %v: %s", err, out)
	}
	file := filepath.Join(bundle, "config.json")
	var config map[string]any
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, &config); err != nil {
		t.Fatal(err)
	}
	process, linux := config["process"].(map[string]any), config["linux"].(map[string]any)
	process["terminal"], process["args"] = false, []string{"/hog", "pause"}
	linux["cgroupsPath"] = at
	if content, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.run(context.WithoutCancel(t.Context()), "delete", "--force", c.id) })
	if out, err := c.run(t.Context(), "create", "--bundle", bundle, c.id); err != nil {
		t.Fatalf("runc create: %v: %s", err, out)
	}
	return c
}

// run runs runc. Its output is a file, because the container inherits it.
func (c *runc) run(ctx context.Context, args ...string) (out []byte, err error) {
	file, err := os.CreateTemp(c.t.TempDir(), "runc")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	cmd := exec.CommandContext(ctx, c.file, slices.Concat(c.args, args)...)
	cmd.Stdout, cmd.Stderr = file, file
	err = cmd.Run()
	out, readErr := os.ReadFile(file.Name())
	return out, errors.Join(err, readErr)
}
