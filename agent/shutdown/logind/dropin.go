package logind

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/evictd/evictd/kernel/process"
)

// DropInName is the drop-in's. Whatever directory they are in, logind reads
// drop-ins in the order of their names (systemd.unit(5) on main configuration
// files: logind.conf.d(5)), and the last has its way; kubelets write
// 99-kubelet.conf, Debian's unattended-upgrades unattended-upgrades-logind-maxdelay.conf.
const DropInName = "zzz-evictd.conf"

// DropInDir is where it is written: what is below /run does not outlive the
// boot, so that it needs no clearing up after an evictd that was removed.
const DropInDir = "/run/systemd/logind.conf.d"

// configDirs are where drop-ins are, the first having the say where two are of
// one name.
var configDirs = []string{
	"/etc/systemd/logind.conf.d", DropInDir, "/usr/local/lib/systemd/logind.conf.d", "/usr/lib/systemd/logind.conf.d", "/lib/systemd/logind.conf.d",
}

// dropIn is the drop-in to logind's configuration that raises its limit. Root
// is where the host's files are.
type dropIn struct{ root string }

func (d dropIn) path() string { return path.Join(d.root, DropInDir, DropInName) }

// written is what a drop-in holds.
type written struct {
	there   bool
	seconds string // the limit
	// pid and start are those of the evictd that wrote it; 0 is not known.
	pid   int
	start uint64
}

// inSeconds returns a limit in whole seconds that hold it.
func inSeconds(limit time.Duration) string {
	seconds := int64(limit / time.Second)
	if limit%time.Second != 0 {
		seconds++
	}
	return strconv.FormatInt(seconds, 10)
}

// writtenBy is the first line, with the process that wrote it and when that was
// started, in clock ticks since boot: a pid alone may be another's by now.
const writtenBy = "# Written by evictd, and removed when it stops: process %d, started at %d"

// content returns a drop-in of a process.
func content(pid int, start uint64, seconds string) []byte {
	return fmt.Appendf(nil, writtenBy+"\n[Login]\nInhibitDelayMaxSec=%s\n", pid, start, seconds)
}

// startOf returns when a process was started, in clock ticks since boot, and 0
// where there is none.
func startOf(pid int) uint64 {
	stat, err := process.ReadStat("/proc", pid)
	if err != nil {
		return 0
	}
	return stat.StartTime
}

// read returns what is written now.
func (d dropIn) read() (written, error) {
	b, err := os.ReadFile(d.path())
	if errors.Is(err, fs.ErrNotExist) {
		return written{}, nil
	}
	if err != nil {
		return written{}, err
	}
	w := written{there: true}
	w.seconds, _ = limitIn(b)
	first, _, _ := strings.Cut(string(b), "\n")
	if _, err := fmt.Sscanf(first, writtenBy, &w.pid, &w.start); err != nil {
		w.pid, w.start = 0, 0 // nobody's
	}
	return w, nil
}

// others reports whether the drop-in is that of another evictd, which runs: it is
// not ours to touch.
func (w written) others() bool {
	return w.there && w.pid != os.Getpid() && w.start > 0 && w.start == startOf(w.pid)
}

// ours reports whether this process wrote it.
func (w written) ours() bool { return w.there && w.pid == os.Getpid() && w.start == startOf(w.pid) }

// write replaces the drop-in as a whole.
func (d dropIn) write(seconds string) error {
	if err := os.MkdirAll(path.Dir(d.path()), 0o755); err != nil {
		return fmt.Errorf("raise logind's limit: %w", err)
	}
	// Logind reads *.conf only, so that it never sees the half of it.
	temporary := d.path() + ".new"
	err := os.WriteFile(temporary, content(os.Getpid(), startOf(os.Getpid()), seconds), 0o644)
	if err == nil {
		err = os.Chmod(temporary, 0o644) // whatever the umask
	}
	if err == nil {
		err = os.Rename(temporary, d.path())
	}
	if err != nil {
		os.Remove(temporary)
		return fmt.Errorf("raise logind's limit: %w", err)
	}
	return nil
}

// remove takes it away; none is no error.
func (d dropIn) remove() error {
	if err := os.Remove(d.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("give logind's limit back: %w", err)
	}
	return nil
}

// rival returns the file whose limit logind takes instead of the drop-in's, as
// "path says InhibitDelayMaxSec=value"; empty where there is none.
func (d dropIn) rival() string {
	for _, f := range d.files() {
		if f.path == path.Join(DropInDir, DropInName) {
			return ""
		}
		if value, ok := d.limitOf(f); ok {
			return f.path + " says InhibitDelayMaxSec=" + value
		}
	}
	return ""
}

// file is a drop-in of logind's.
type file struct{ name, path string }

// limitOf returns the limit that a drop-in names.
func (d dropIn) limitOf(f file) (string, bool) {
	b, err := os.ReadFile(path.Join(d.root, f.path))
	if err != nil {
		return "", false
	}
	return limitIn(b)
}

// files lists logind's drop-ins, the one that has the say first.
func (d dropIn) files() (last []file) {
	seen := map[string]bool{}
	for _, dir := range configDirs {
		entries, err := os.ReadDir(path.Join(d.root, dir))
		if err != nil {
			continue // most of them are not there
		}
		for _, e := range entries {
			if name := e.Name(); strings.HasSuffix(name, ".conf") && !seen[name] {
				seen[name] = true
				last = append(last, file{name, path.Join(dir, name)})
			}
		}
	}
	slices.SortFunc(last, func(a, b file) int { return cmp.Compare(b.name, a.name) })
	return last
}

// limitIn returns the last InhibitDelayMaxSec of a configuration file's section
// Login.
func limitIn(b []byte) (value string, ok bool) {
	login := false
	for line := range bytes.Lines(b) {
		text := strings.TrimSpace(string(line))
		switch {
		case strings.HasPrefix(text, "["):
			login = text == "[Login]"
		case login:
			if key, v, found := strings.Cut(text, "="); found && strings.TrimSpace(key) == "InhibitDelayMaxSec" {
				value, ok = strings.TrimSpace(v), true
			}
		}
	}
	return value, ok
}
