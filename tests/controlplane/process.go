package controlplane

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/evictd/evictd/tests/daemon"
)

// start starts a program of the control plane. Its output is in NAME.log.
func (c *ControlPlane) start(name, program string, args ...string) (*daemon.Process, error) {
	log, err := os.OpenFile(filepath.Join(c.Dir, name+logSuffix), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(c.Programs, program), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.Dir, log, log
	p, err := daemon.StartProcess(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c.mu.Lock()
	c.processes = append(c.processes, p)
	c.mu.Unlock()
	return p, nil
}

const (
	logSuffix = ".log"
	tailBytes = 4000
)

// LogTails returns the ends of the programs' logs.
func (c *ControlPlane) LogTails() string {
	logs, err := filepath.Glob(filepath.Join(c.Dir, "*"+logSuffix))
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, path := range logs {
		if path == c.AuditLog() {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			content = []byte(err.Error())
		}
		name := strings.TrimSuffix(filepath.Base(path), logSuffix)
		fmt.Fprintf(&b, "%s:\n%s\n", name, content[max(0, len(content)-tailBytes):])
	}
	return b.String()
}
