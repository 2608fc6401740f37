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

// LastBoot returns how the previous boot ended, and logs it. known is the result of an
// earlier run of this boot, nil if there is none; previous is what the last run of
// the previous boot saved.
func LastBoot(known *shutdown.LastBoot, previous *shutdown.PreviousRun, sysfs, root string, log *slog.Logger) shutdown.LastBoot {
	if known == nil {
		since := time.Time{}
		if previous != nil {
			since = previous.At
		}
		lastBoot := shutdown.ClassifyLastBoot(previous, panicTrace(sysfs, root, since))
		known = &lastBoot
	}
	attributes := []any{"reason", string(known.Reason), "detail", known.Detail}
	if known.Clean != nil && !*known.Clean {
		log.Warn("last shutdown of the node was not clean", attributes...)
	} else {
		log.Info("last shutdown of the node", attributes...)
	}
	return *known
}

// panicTrace returns the path of a kernel panic's trace that is newer than since;
// empty for none. It searches the records in the firmware's memory (pstore), the
// files that systemd-pstore moves from there, and kdump's dumps.
func panicTrace(sysfs, root string, since time.Time) string {
	for _, source := range []struct {
		dir     string
		matches func(string) bool
		prefix  string // of the content; empty matches any
	}{
		{filepath.Join(sysfs, "/fs/pstore"), isDmesg, "Panic"},
		{filepath.Join(root, "/var/lib/systemd/pstore"), isDmesg, "Panic"},
		{filepath.Join(root, "/var/crash"), isDump, ""},
	} {
		if trace := newest(source.dir, since, source.matches, source.prefix); trace != "" {
			return trace
		}
	}
	return ""
}

// isDmesg reports whether a file of a pstore has the kernel's last messages
// (fs/pstore/platform.c: pstore_dump). isDump reports whether kdump wrote the file
// (kdump-tools, kexec-tools).
func isDmesg(name string) bool { return strings.HasPrefix(name, "dmesg-") }

func isDump(name string) bool {
	return strings.HasPrefix(name, "vmcore") || strings.HasPrefix(name, "dump.")
}

// maxTraceFiles limits the number of files that newest visits.
const maxTraceFiles = 1000

// newest returns a file below dir that is newer than since, whose name matches and
// whose content begins with prefix.
func newest(dir string, since time.Time, matches func(string) bool, prefix string) (found string) {
	seen := 0
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if seen++; seen > maxTraceFiles {
			return fs.SkipAll
		}
		if err != nil || e.IsDir() || !matches(e.Name()) {
			return nil // unreadable entries are skipped
		}
		info, err := e.Info()
		if err != nil || !info.ModTime().After(since) || !hasPrefix(path, prefix) {
			return nil
		}
		found = path
		return fs.SkipAll
	})
	return found
}

// hasPrefix reports whether the content of a file begins with prefix.
func hasPrefix(path, prefix string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, len(prefix))
	_, err = io.ReadFull(f, head)
	return err == nil && bytes.Equal(head, []byte(prefix))
}

// systemStateTimeout bounds the query of systemd's state when evictd ends.
const systemStateTimeout = time.Second

// GoingDown reports whether the node is shutting down, as far as known: from a
// shutdown in progress, from logind, or from systemd, which is the only source in a
// forced shutdown.
func (d *Driver) GoingDown() bool {
	if d.State().Active() || d.o.DelayLock.Status().Preparing {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), systemStateTimeout)
	defer cancel()
	c, err := logind.Connect(ctx, d.o.Bus)
	if err != nil {
		return false
	}
	defer c.Close()
	state, err := c.SystemState(ctx)
	return err == nil && state == "stopping"
}
