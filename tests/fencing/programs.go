package fencing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"

	"github.com/evictd/evictd/tests/bmc"
	"github.com/evictd/evictd/tests/controlplane"
)

// Check returns an error that names the programs that are missing.
func Check() error {
	_, err := controlplane.FindPrograms(controlplane.Etcd, controlplane.APIServer, controlplane.ControllerManager, controlplane.Scheduler)
	_, err2 := bmc.Program("ipmi_sim")
	return errors.Join(err, err2)
}

// Fetch gets the programs that Check misses into the cache directory, and installs nothing. Those of Kubernetes are
// built, which takes minutes. The working directory must be the module's root. Progress is written to log.
func Fetch(ctx context.Context, log io.Writer) error {
	missing := Check()
	for _, f := range []struct {
		err    error
		script string
	}{{controlplane.ErrMissing, "tests/cluster/fetch.sh"}, {bmc.ErrMissing, "tests/bmc/fetch.sh"}} {
		if !errors.Is(missing, f.err) {
			continue
		}
		fmt.Fprintf(log, "%v\nfetching it into a cache directory\n", missing)
		cmd := exec.CommandContext(ctx, "sh", f.script)
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", f.script, err)
		}
	}
	return Check()
}
