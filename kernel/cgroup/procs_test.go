package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

func inode(st os.FileInfo) uint64 { return st.Sys().(*syscall.Stat_t).Ino }

// descriptors returns the number of open descriptors of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestProcs(t *testing.T) {
	var many strings.Builder
	var all []int
	for pid := 4000000; pid < 4003000; pid++ { // 8 bytes each: several buffers
		fmt.Fprintln(&many, pid)
		all = append(all, pid)
	}
	for _, tt := range []struct {
		name  string
		procs map[string]string // by cgroup, relative to the one under test
		want  []int
		err   string
	}{
		{name: "empty", procs: map[string]string{".": ""}},
		{name: "sorted without duplicates", procs: map[string]string{".": "30\n20\n30\n"}, want: []int{20, 30}},
		{name: "subtree", procs: map[string]string{".": "30\n", "a": "10\n", "a/b": "20\n", "c": ""}, want: []int{10, 20, 30}},
		{name: "moved between two cgroups", procs: map[string]string{".": "", "a": "10\n", "b": "10\n"}, want: []int{10}},
		{name: "many", procs: map[string]string{".": many.String()}, want: all},
		{name: "largest", procs: map[string]string{".": "4194304\n"}, want: []int{4194304}},
		{name: "too large", procs: map[string]string{".": "4194305\n"}, err: "number too large"},
		{name: "other pid namespace", procs: map[string]string{".": "7\n", "a": "7\n0\n"}, err: ErrOtherPIDNamespace.Error()},
		{name: "negative", procs: map[string]string{".": "-7\n"}, err: "not a decimal number"},
		{name: "cut off", procs: map[string]string{".": "7\n8"}, err: "text ends within a line"},
		{name: "empty line", procs: map[string]string{".": "7\n\n"}, err: "not a decimal number"},
		{name: "line too long", procs: map[string]string{".": strings.Repeat("1", 5000)}, err: "longer than its buffer"},
	} {
		v1, v2 := treeV1(t), treeV2(t)
		for dir, procs := range tt.procs {
			cgroupV1(t, v1, filepath.Join("/x", dir), "4096\n", unlimitedV1, procs)
			cgroupV2(t, v2, filepath.Join("/x", dir), "4096\n", "max\n", procs)
		}
		for version, files := range map[Version]map[string]string{V1: v1, V2: v2} {
			t.Run(fmt.Sprint(tt.name, " ", version), func(t *testing.T) {
				h, _ := findTree(t, files)
				h.initPIDNS = false
				c := open(t, h, "/x")
				dst := make([]int, 3, 8)
				got, err := c.Procs(dst)
				if tt.err != "" {
					if err == nil || !strings.Contains(err.Error(), tt.err) || len(got) != 0 {
						t.Errorf("Procs() = %v, %v; want an error with %q", got, err, tt.err)
					}
					return
				}
				if err != nil || !slices.Equal(got, tt.want) {
					t.Errorf("Procs() = %v, %v; want %v", got, err, tt.want)
				}
				if n, err := c.Tasks(); err != nil || version == V1 && tt.name == "subtree" && n != 3 {
					t.Errorf("Tasks() = %d, %v; want 3", n, err)
				}
			})
		}
	}
}

// In the initial pid namespace a 0 is a process that starts or exits, which a fork
// storm has in nearly every list: the other processes are returned.
func TestProcsWithoutPID(t *testing.T) {
	v2 := treeV2(t)
	cgroupV2(t, v2, "/storm", "4096\n", "max\n", "0\n7\n0\n9\n")
	cgroupV2(t, v2, "/storm/below", "4096\n", "max\n", "0\n8\n")
	h, _ := findTree(t, v2)
	h.initPIDNS = true
	c := open(t, h, "/storm")
	if got, err := c.Procs(nil); err != nil || !slices.Equal(got, []int{7, 8, 9}) {
		t.Errorf("Procs() = %v, %v; want the processes with a pid", got, err)
	}
	if n, err := c.Tasks(); err != nil || n != 3 {
		t.Errorf("Tasks() = %d, %v; want 3", n, err)
	}
}

func TestWalkProcs(t *testing.T) {
	for version, files := range map[Version]map[string]string{V1: treeV1(t), V2: treeV2(t)} {
		for dir, procs := range map[string]string{".": "30\n20\n30\n", "a": "10\n", "a/b": "", "c": "40\n"} {
			if version == V1 {
				cgroupV1(t, files, filepath.Join("/x", dir), "4096\n", unlimitedV1, procs)
			} else {
				cgroupV2(t, files, filepath.Join("/x", dir), "4096\n", "max\n", procs)
			}
		}
		h, _ := findTree(t, files)
		c := open(t, h, "/x")
		walk := func(limit int) (got []string, err error) {
			err = c.WalkProcs(func(rel string, pids []int) (bool, error) {
				got = append(got, fmt.Sprint(rel, pids))
				return len(got) < limit, nil
			})
			return got, err
		}
		if got, err := walk(10); err != nil || !slices.Equal(got, []string{".[20 30]", "a[10]", "a/b[]", "c[40]"}) {
			t.Errorf("%s: WalkProcs() visits %q, %v; want each cgroup with its own processes", version, got, err)
		}
		if got, err := walk(2); err != nil || len(got) != 2 {
			t.Errorf("%s: WalkProcs() visits %q, %v; want it to end after two cgroups", version, got, err)
		}
		failed := errors.New("no")
		if err := c.WalkProcs(func(string, []int) (bool, error) { return true, failed }); !errors.Is(err, failed) {
			t.Errorf("%s: WalkProcs() = %v; want the error of the visit", version, err)
		}
		for rel, want := range map[string][]int{".": {20, 30}, "a": {10}, "gone": nil} {
			if got, err := c.ProcsOf(rel, nil); err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: ProcsOf(%q) = %v, %v; want %v", version, rel, got, err, want)
			}
		}
		if c.Leaf() {
			t.Errorf("%s: Leaf() of a cgroup with children = true; want false", version)
		}
	}
}

func TestPopulated(t *testing.T) {
	v1 := treeV1(t)
	cgroupV1(t, v1, "/empty", "0\n", unlimitedV1, "")
	cgroupV1(t, v1, "/empty/below", "0\n", unlimitedV1, "")
	v2 := treeV2(t)
	cgroupV2(t, v2, "/other-pidns", "0\n", "max\n", "0\n")
	for _, tt := range []struct {
		path  string
		files map[string]string
		want  bool
	}{
		{"/", v1, true},
		{"/kubepods", v1, true},
		{"/empty", v1, false},
		{"/", v2, true},
		{"/kubepods.slice", v2, false}, // by its cgroup.events
		{"/other-pidns", v2, true},
	} {
		h, _ := findTree(t, tt.files)
		if got, err := open(t, h, tt.path).Populated(); err != nil || got != tt.want {
			t.Errorf("%s: Populated(%s) = %v, %v; want %v", h.Version, tt.path, got, err, tt.want)
		}
	}
}

func TestParseEvent(t *testing.T) {
	for _, tt := range []struct {
		in, key string
		want    bool
		err     string
	}{
		{in: "populated 1\nfrozen 0\n", key: "populated", want: true},
		{in: "populated 1\nfrozen 0\n", key: "frozen"},
		{in: "populated 0\n", key: "frozen", err: `no line for "frozen"`},
		{in: "", key: "frozen", err: `no line for "frozen"`},
		{in: "populated\n", key: "populated", err: `populated is ""`},
		{in: "populated 2\n", key: "populated", err: `populated is "2"`},
		{in: "populated 1\r\n", key: "populated", err: `populated is "1\r"`},
		{in: "populated 1", key: "populated", err: "text ends within a line"},
	} {
		got, err := parseEvent([]byte(tt.in), tt.key)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("parseEvent(%q, %s) = %v; want an error with %q", tt.in, tt.key, err, tt.err)
			}
		} else if err != nil || got != tt.want {
			t.Errorf("parseEvent(%q, %s) = %v, %v; want %v", tt.in, tt.key, got, err, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"30\n20\n", "0\n", "7\n8", "populated 1\nfrozen 0\n", "-1\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		pids, rest, err := parsePIDs(b, nil)
		if err == nil && strings.Contains(string(rest), "\n") {
			t.Errorf("parsePIDs(%q) left %q", b, rest)
		}
		for _, pid := range pids {
			if pid < 0 || pid > maxPID {
				t.Errorf("parsePIDs(%q) = %d", b, pid)
			}
		}
		if v, err := parseEvent(b, "populated"); v && err != nil {
			t.Errorf("parseEvent(%q) = true, %v", b, err)
		}
	})
}

func TestTasks(t *testing.T) {
	h, _ := findTree(t, treeV1(t))
	for path, want := range map[string]uint64{
		"/kubepods/burstable/pod1/ctr": 17, // pids.current
	} {
		if got, err := open(t, h, path).Tasks(); err != nil || got != want {
			t.Errorf("Tasks(%s) = %d, %v; want %d", path, got, err, want)
		}
	}
}

func TestFreezerV1(t *testing.T) {
	files := treeV1(t)
	cgroupV1(t, files, "/nofreezer", "0\n", unlimitedV1, "")
	const ctr = "kubepods/burstable/pod1/ctr"
	files["freezer/"+ctr+"/inner/freezer.state"] = "FROZEN\n"
	h, root := findTree(t, files)
	c := open(t, h, "/"+ctr)
	state := func(dir string) string {
		b, err := os.ReadFile(filepath.Join(root, "freezer", ctr, dir, "freezer.state"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}

	if got, err := c.Frozen(); err != nil || !got {
		t.Errorf("Frozen() with a frozen child = %v, %v; want true", got, err)
	}
	if err := c.Thaw(); err != nil {
		t.Errorf("Thaw() = %v; want nil", err)
	}
	// A regular file keeps the end of its old content.
	if got := state("inner"); !strings.HasPrefix(got, "THAWED") {
		t.Errorf("state of the child after Thaw = %q; want THAWED", got)
	}
	if got, err := c.Frozen(); err != nil || got {
		t.Errorf("Frozen() after Thaw = %v, %v; want false", got, err)
	}
	if err := c.Freeze(); err != nil || !strings.HasPrefix(state("."), "FROZEN") {
		t.Errorf("Freeze() = %v, state %q; want FROZEN", err, state("."))
	}
	kerneltest.Write(t, root, map[string]string{"freezer/" + ctr + "/freezer.state": "MELTED\n"})
	if got, err := c.Frozen(); err == nil {
		t.Errorf("Frozen() of an unknown state = %v; want an error", got)
	}

	without := open(t, h, "/nofreezer")
	for name, err := range map[string]error{"Freeze": without.Freeze(), "Thaw": without.Thaw(), "Kill": c.Kill()} {
		if !errors.Is(err, kernel.ErrUnavailable) {
			t.Errorf("%s() = %v; want %v", name, err, kernel.ErrUnavailable)
		}
	}
	if _, err := without.Frozen(); !errors.Is(err, kernel.ErrUnavailable) {
		t.Errorf("Frozen() = %v; want %v", err, kernel.ErrUnavailable)
	}
}

func TestControlV2(t *testing.T) {
	files := treeV2(t)
	cgroupV2(t, files, "/old", "0\n", "max\n", "")
	delete(files, "/old/cgroup.kill")
	h, root := findTree(t, files)
	c := open(t, h, "/kubepods.slice")
	if err := c.Kill(); err != nil {
		t.Errorf("Kill() = %v; want nil", err)
	}
	if b, _ := os.ReadFile(filepath.Join(root, "kubepods.slice/cgroup.kill")); string(b) != "1" {
		t.Errorf("cgroup.kill = %q; want 1", b)
	}
	for _, tt := range []struct {
		events, freeze string
		want           bool
	}{
		{"populated 1\nfrozen 0\n", "0\n", false},
		{"populated 1\nfrozen 0\n", "1\n", true}, // being frozen
		{"populated 1\nfrozen 1\n", "0\n", true}, // by an ancestor
	} {
		kerneltest.Write(t, root, map[string]string{"kubepods.slice/cgroup.events": tt.events, "kubepods.slice/cgroup.freeze": tt.freeze})
		if got, err := c.Frozen(); err != nil || got != tt.want {
			t.Errorf("Frozen() with %q and %q = %v, %v; want %v", tt.events, tt.freeze, got, err, tt.want)
		}
	}
	if err := open(t, h, "/old").Kill(); !errors.Is(err, kernel.ErrUnavailable) {
		t.Errorf("Kill() without cgroup.kill = %v; want %v", err, kernel.ErrUnavailable)
	}
}

func TestRootIsRefused(t *testing.T) {
	for _, files := range []map[string]string{treeV1(t), treeV2(t)} {
		files["cgroup.kill"], files["cgroup.freeze"] = "", "0\n" // as in the root of a container
		h, _ := findTree(t, files)
		root := open(t, h, "/")
		for name, err := range map[string]error{"Kill": root.Kill(), "Freeze": root.Freeze(), "Thaw": root.Thaw()} {
			if !errors.Is(err, errRoot) {
				t.Errorf("%s: %s() of the root = %v; want %v", h.Version, name, err, errRoot)
			}
		}
	}
}
