package controlplane

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/evictd/evictd/tests/daemon"
)

var errClosed = errors.New("the control plane is closed")

// restartDelay is the time between the end of a program and its next start.
const restartDelay = time.Second

// keep starts a program, and again whenever it has ended, until Close.
func (c *ControlPlane) keep(name, program string, args ...string) error {
	p, err := c.start(name, program, args...)
	if err != nil {
		return err
	}
	go func() {
		for {
			<-p.Done()
			select {
			case <-c.closing:
				return
			case <-time.After(restartDelay):
			}
			if p, err = c.start(name, program, args...); err != nil {
				return
			}
		}
	}()
	return nil
}

// start starts a program of the control plane. Its output is in NAME.log. The error is errClosed after Close.
func (c *ControlPlane) start(name, program string, args ...string) (*daemon.Process, error) {
	log, err := os.OpenFile(filepath.Join(c.Dir, name+logSuffix), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(c.Programs, program), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.Dir, log, log
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.closing:
		return nil, fmt.Errorf("start %s: %w", name, errClosed)
	default:
	}
	p, err := daemon.StartProcess(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c.processes = append(c.processes, p)
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
