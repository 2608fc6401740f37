package driver

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/shutdown/logind"
)

// Last returns what became of the boot before this one, and logs it. known is what an
// earlier run of this boot found; nil is nothing, and before what the last run of the
// boot before left.
func Last(known *shutdown.Last, before *shutdown.Before, sysfs, root string, log *slog.Logger) shutdown.Last {
	if known == nil {
		since := time.Time{}
		if before != nil {
			since = before.At
		}
		judged := shutdown.Judge(before, panicTrace(sysfs, root, since))
		known = &judged
	}
	attributes := []any{"reason", string(known.Reason), "detail", known.Detail}
	if known.Clean != nil && !*known.Clean {
		log.Warn("the node's last shutdown was not clean", attributes...)
	} else {
		log.Info("the node's last shutdown", attributes...)
	}
	return *known
}

// panicTrace returns the path of what a kernel panic has left since a time;
// empty is nothing. These are looked at: the records in the firmware's memory
// (pstore), what systemd-pstore has made of them, and kdump's dumps.
func panicTrace(sysfs, root string, since time.Time) string {
	for _, place := range []struct {
		dir   string
		named func(string) bool
		begin string // of the content; empty is any
	}{
		{filepath.Join(sysfs, "/fs/pstore"), isDmesg, "Panic"},
		{filepath.Join(root, "/var/lib/systemd/pstore"), isDmesg, "Panic"},
		{filepath.Join(root, "/var/crash"), isDump, ""},
	} {
		if trace := newest(place.dir, since, place.named, place.begin); trace != "" {
			return trace
		}
	}
	return ""
}

// isDmesg knows the part of a pstore that holds the kernel's last messages
// (fs/pstore/platform.c: pstore_dump), isDump what kdump writes (kdump-tools,
// kexec-tools).
func isDmesg(name string) bool { return strings.HasPrefix(name, "dmesg-") }

func isDump(name string) bool {
	return strings.HasPrefix(name, "vmcore") || strings.HasPrefix(name, "dump.")
}

// mostTraces bounds how many files are looked at.
const mostTraces = 1000

// newest returns a file below dir that is newer than a time, so named, and
// begins like that.
func newest(dir string, since time.Time, named func(string) bool, begin string) (found string) {
	seen := 0
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if seen++; seen > mostTraces {
			return fs.SkipAll
		}
		if err != nil || e.IsDir() || !named(e.Name()) {
			return nil // what can't be looked at says nothing
		}
		info, err := e.Info()
		if err != nil || !info.ModTime().After(since) || !begins(path, begin) {
			return nil
		}
		found = path
		return fs.SkipAll
	})
	return found
}

// begins reports whether a file begins with that.
func begins(path, with string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, len(with))
	_, err = io.ReadFull(f, head)
	return err == nil && bytes.Equal(head, []byte(with))
}

// askState is how long systemd is asked for its state when evictd ends.
const askState = time.Second

// GoingDown reports whether the node is on its way down, so far as can be told:
// by a shutdown that is known of, by logind, or by systemd, which a forced
// shutdown goes by alone.
func (s *Driver) GoingDown() bool {
	if s.State().Active() || s.o.Guard.Status().Preparing {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), askState)
	defer cancel()
	c, err := logind.Connect(ctx, s.o.Bus)
	if err != nil {
		return false
	}
	defer c.Close()
	state, err := c.SystemState(ctx)
	return err == nil && state == "stopping"
}
