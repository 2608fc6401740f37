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

// DropInName is the file name of the drop-in. Whatever their directories, logind
// reads drop-ins in the order of their names (systemd.unit(5) on main configuration
// files: logind.conf.d(5)), and the last one wins. Kubelets write 99-kubelet.conf,
// Debian's unattended-upgrades writes unattended-upgrades-logind-maxdelay.conf.
const DropInName = "zzz-evictd.conf"

// DropInDir is the directory of the drop-in. Files below /run do not outlive the
// boot, so none remains after evictd was uninstalled.
const DropInDir = "/run/systemd/logind.conf.d"

// configDirs are the directories of drop-ins. Of two files with one name, the one
// in the earlier directory counts.
var configDirs = []string{
	"/etc/systemd/logind.conf.d", DropInDir, "/usr/local/lib/systemd/logind.conf.d", "/usr/lib/systemd/logind.conf.d", "/lib/systemd/logind.conf.d",
}

// dropIn is the drop-in to logind's configuration that raises its limit. root is
// where the host's root is mounted.
type dropIn struct{ root string }

func (d dropIn) path() string { return path.Join(d.root, DropInDir, DropInName) }

// dropInContent is the content of a drop-in.
type dropInContent struct {
	exists  bool
	seconds string // the limit
	// pid and start identify the evictd process that wrote it; 0 if unknown.
	pid   int
	start uint64
}

// wholeSeconds returns a limit rounded up to whole seconds.
func wholeSeconds(limit time.Duration) string {
	seconds := int64(limit / time.Second)
	if limit%time.Second != 0 {
		seconds++
	}
	return strconv.FormatInt(seconds, 10)
}

// headerFormat is the first line, with the process that wrote the file and its
// start in clock ticks since boot: a pid alone may have been reused.
const headerFormat = "# Written by evictd, and removed when it stops: process %d, started at %d"

// content returns the drop-in of a process.
func content(pid int, start uint64, seconds string) []byte {
	return fmt.Appendf(nil, headerFormat+"\n[Login]\nInhibitDelayMaxSec=%s\n", pid, start, seconds)
}

// startTime returns the start of a process in clock ticks since boot, and 0 if it
// does not exist.
func startTime(pid int) uint64 {
	stat, err := process.ReadStat("/proc", pid)
	if err != nil {
		return 0
	}
	return stat.StartTime
}

// read returns the current content.
func (d dropIn) read() (dropInContent, error) {
	b, err := os.ReadFile(d.path())
	if errors.Is(err, fs.ErrNotExist) {
		return dropInContent{}, nil
	}
	if err != nil {
		return dropInContent{}, err
	}
	c := dropInContent{exists: true}
	c.seconds, _ = parseLimit(b)
	first, _, _ := strings.Cut(string(b), "\n")
	if _, err := fmt.Sscanf(first, headerFormat, &c.pid, &c.start); err != nil {
		c.pid, c.start = 0, 0 // unknown
	}
	return c, nil
}

// ofOtherEvictd reports whether another running evictd wrote the drop-in. This process
// then must not change it.
func (c dropInContent) ofOtherEvictd() bool {
	return c.exists && c.pid != os.Getpid() && c.start > 0 && c.start == startTime(c.pid)
}

// ofThisProcess reports whether this process wrote the drop-in.
func (c dropInContent) ofThisProcess() bool {
	return c.exists && c.pid == os.Getpid() && c.start == startTime(c.pid)
}

// write replaces the drop-in.
func (d dropIn) write(seconds string) error {
	if err := os.MkdirAll(path.Dir(d.path()), 0o755); err != nil {
		return fmt.Errorf("write logind drop-in: %w", err)
	}
	// logind reads only *.conf, so it never reads an incomplete file.
	temporary := d.path() + ".new"
	err := os.WriteFile(temporary, content(os.Getpid(), startTime(os.Getpid()), seconds), 0o644)
	if err == nil {
		err = os.Chmod(temporary, 0o644) // independent of the umask
	}
	if err == nil {
		err = os.Rename(temporary, d.path())
	}
	if err != nil {
		os.Remove(temporary)
		return fmt.Errorf("write logind drop-in: %w", err)
	}
	return nil
}

// remove removes the drop-in. It is no error if there is none.
func (d dropIn) remove() error {
	if err := os.Remove(d.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove logind drop-in: %w", err)
	}
	return nil
}

// override returns the file whose limit logind uses instead of the drop-in's, as
// "path sets InhibitDelayMaxSec=value"; empty if there is none.
func (d dropIn) override() string {
	for _, f := range d.files() {
		if f.path == path.Join(DropInDir, DropInName) {
			return ""
		}
		if value, ok := d.limitOf(f); ok {
			return f.path + " sets InhibitDelayMaxSec=" + value
		}
	}
	return ""
}

// file is a logind drop-in.
type file struct{ name, path string }

// limitOf returns the limit that a drop-in sets.
func (d dropIn) limitOf(f file) (string, bool) {
	b, err := os.ReadFile(path.Join(d.root, f.path))
	if err != nil {
		return "", false
	}
	return parseLimit(b)
}

// files lists logind's drop-ins, the one with the highest precedence first.
func (d dropIn) files() (list []file) {
	seen := map[string]bool{}
	for _, dir := range configDirs {
		entries, err := os.ReadDir(path.Join(d.root, dir))
		if err != nil {
			continue // most directories do not exist
		}
		for _, e := range entries {
			if name := e.Name(); strings.HasSuffix(name, ".conf") && !seen[name] {
				seen[name] = true
				list = append(list, file{name, path.Join(dir, name)})
			}
		}
	}
	slices.SortFunc(list, func(a, b file) int { return cmp.Compare(b.name, a.name) })
	return list
}

// parseLimit returns the last InhibitDelayMaxSec in the section Login of a
// configuration file.
func parseLimit(b []byte) (value string, ok bool) {
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
