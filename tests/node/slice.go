package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// startSlice makes systemd start a slice and its ancestors as a transient unit, as libcontainer does for a kubelet.
// systemd unloads a transient unit when it is stopped. startSlice returns when the cgroup has its limits. It does not
// change a slice that exists.
func startSlice(h hierarchy, cgroup string, memory, pids int64) error {
	if _, err := os.Lstat(h.path(cgroup)); err == nil {
		return nil
	}
	properties := [][]string{
		{"Description", "s", "a slice of evictd's tests"},
		{"DefaultDependencies", "b", "false"},
		{"MemoryAccounting", "b", "true"},
		{"TasksAccounting", "b", "true"},
	}
	memory -= memory % int64(os.Getpagesize()) // as the kernel does (mm/page_counter.c: page_counter_memparse)
	limits := map[string]int64{"memory.max": memory, "pids.max": pids}
	for file, property := range map[string]string{"memory.max": "MemoryMax", "pids.max": "TasksMax"} {
		if limits[file] > 0 {
			properties = append(properties, []string{property, "t", strconv.FormatInt(limits[file], 10)})
		}
	}
	// busctl, because no other tool of systemd starts a slice with properties without leaving files behind.
	args := []string{
		"--quiet", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager",
		"StartTransientUnit", "ssa(sv)a(sa(sv))", filepath.Base(cgroup), "fail", strconv.Itoa(len(properties)),
	}
	for _, p := range properties {
		args = append(args, p...)
	}
	if _, err := systemd("busctl", append(args, "0")...); err != nil {
		return fmt.Errorf("start slice %s: %w", filepath.Base(cgroup), err)
	}
	for end := time.Now().Add(stepTimeout); ; time.Sleep(2 * time.Millisecond) {
		missing := ""
		for file, limit := range limits {
			b, err := os.ReadFile(h.path(cgroup, file))
			if err != nil {
				missing = err.Error()
			} else if limit > 0 && strings.TrimSpace(string(b)) != strconv.FormatInt(limit, 10) {
				missing = fmt.Sprintf("%s is %s; want %d", file, strings.TrimSpace(string(b)), limit)
			}
		}
		if missing == "" {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("start slice %s: after %v: %s", filepath.Base(cgroup), stepTimeout, missing)
		}
	}
}

// stopSlice makes systemd stop and unload a slice and all units below it. The slice must have no processes.
func stopSlice(t tree, cgroup string) error {
	units := []string{filepath.Base(cgroup)}
	loaded, err := loadedUnits(cgroup)
	if err != nil {
		return fmt.Errorf("stop slice %s: %w", filepath.Base(cgroup), err)
	}
	for _, u := range loaded {
		units = append(units, u.name)
	}
	for _, dir := range t.dirs(cgroup) {
		switch filepath.Ext(dir) {
		case ".slice", ".scope":
			units = append(units, filepath.Base(dir))
		}
	}
	slices.Sort(units)
	units = slices.Compact(units)
	if _, err := systemd("systemctl", append([]string{"stop", "--"}, units...)...); err != nil && !notLoaded(err) {
		return fmt.Errorf("stop slice %s: %w", filepath.Base(cgroup), err)
	}
	// A scope in which the kernel's OOM killer killed a process stays loaded as failed. The others are unloaded.
	if _, err := systemd("systemctl", append([]string{"reset-failed", "--"}, units...)...); err != nil && !notLoaded(err) {
		return fmt.Errorf("reset failed units of slice %s: %w", filepath.Base(cgroup), err)
	}
	return nil
}

// notLoaded reports whether systemctl failed because a unit is not loaded.
func notLoaded(err error) bool { return strings.Contains(err.Error(), "not loaded") }

// systemd runs one of systemd's command-line tools and returns its output. It fails after stepTimeout.
func systemd(tool string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, tool, args...)
	// Without SYSTEMD_IGNORE_CHROOT, systemctl in a chroot does nothing and exits with 0.
	cmd.Env = append(os.Environ(), "SYSTEMD_IGNORE_CHROOT=1", "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", tool, err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// transientDir is where systemd writes the unit files of transient units.
const transientDir = "/run/systemd/transient"

// loadedUnit is a unit that systemd has loaded.
type loadedUnit struct{ name, state string }

// loadedUnits returns a slice, the slices below it and the scopes in them, if they are loaded. A scope that failed stays
// loaded without a cgroup, and keeps its slices loaded.
func loadedUnits(cgroup string) (units []loadedUnit, err error) {
	slice := filepath.Base(cgroup)
	out, err := systemd("systemctl", "show", "--property=Id,Slice,ActiveState,SubState,Description", "--", "*.slice", "*.scope")
	if err != nil {
		return nil, err
	}
	within := func(name string) bool {
		return name == slice || strings.HasSuffix(name, sliceSuffix) && strings.HasPrefix(name, strings.TrimSuffix(slice, sliceSuffix)+"-")
	}
	for block := range strings.SplitSeq(out, "\n\n") {
		properties := map[string]string{}
		for line := range strings.Lines(block) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			properties[name] = value
		}
		if name := properties["Id"]; within(name) || within(properties["Slice"]) {
			units = append(units, loadedUnit{name, strings.Join([]string{properties["ActiveState"], properties["SubState"], properties["Description"]}, " ")})
		}
	}
	return units, nil
}

// units describes the loaded units of a node and their transient unit files.
func (r record) units() []string {
	if r.Driver != Systemd {
		return nil
	}
	loaded, err := loadedUnits(r.slice())
	if err != nil {
		return []string{fmt.Sprintf("list units of %s: %v", r.slice(), err)}
	}
	var all []string
	for _, u := range loaded {
		all = append(all, "unit "+u.name+" "+u.state)
	}
	files, _ := filepath.Glob(filepath.Join(transientDir, strings.TrimSuffix(r.slice(), sliceSuffix)+"*")) // fails only for a malformed pattern
	for _, file := range files {
		all = append(all, "file "+file)
	}
	return all
}
