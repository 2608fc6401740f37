package disks

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/disk"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// The largest directories of a filesystem are named, without what pods hold in them,
// and a filesystem below that hangs holds nothing up.
func TestLargest(t *testing.T) {
	root := kerneltest.Loop(t, "ext4", 64*mebibyte, "")
	write := func(mib int, elem ...string) {
		path := filepath.Join(append([]string{root}, elem...)...)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, mib*mebibyte), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(9, "var/log/journal/id/system.journal")
	write(3, "var/swapfile")
	write(2, "pods/rest")
	for i := range 50 {
		write(0, "home/a/mail", fmt.Sprint(i))
	}
	emptyDir(t, root, "u", "v", 16)
	hung := filepath.Join(root, "var/log/hung")
	if err := os.Mkdir(hung, 0o755); err != nil {
		t.Fatal(err)
	}
	kerneltest.Hang(t, hung)

	answered := make(chan []evict.DirectoryUsage, 1)
	o := UsageOptions{Procfs: kernel.FS("/proc"), PodsDir: filepath.Join(root, "pods")}
	o.Surveyed = func(point string, byBytes, _ []evict.DirectoryUsage) {
		if point != root {
			t.Errorf("survey of %s; want %s", point, root)
		}
		answered <- byBytes
	}
	u := measuring(t, o, nil)
	begin := time.Now()
	u.Want([]Subject{{UID: "u"}}, true)
	eventually(t, "measurement of the pod", func() bool { return u.Unmeasured(begin) == "" })
	if got := u.Largest(root, false); got != nil {
		t.Errorf("Largest before the survey = %+v; want nothing", got)
	}
	byBytes := <-answered
	name := func(all []evict.DirectoryUsage) (names []string) {
		for _, d := range all[:3] {
			rel, err := filepath.Rel(root, d.Path)
			if err != nil {
				t.Error(err)
			}
			names = append(names, fmt.Sprint(rel, " ", d.Bytes>>20))
		}
		return names
	}
	if got, want := name(byBytes), []string{"var/log/journal 9", "var 3", "pods 2"}; !slices.Equal(got, want) {
		t.Errorf("largest by bytes %q; want %q", got, want)
	}
	byInodes := u.Largest(root, true)
	if len(byInodes) != surveyLargest || byInodes[0].Inodes != 51 || filepath.Base(byInodes[0].Path) != "mail" {
		t.Errorf("largest by inodes %+v; want the 51 of home/a/mail first", byInodes)
	}
	if got := u.Largest(root, false); !slices.Equal(got, byBytes) {
		t.Errorf("Largest = %+v; want %+v", got, byBytes)
	}
	select {
	case <-answered:
		t.Error("a second survey right after the first")
	default:
	}
}

func TestOutsidePods(t *testing.T) {
	pods := map[string]disk.Usage{"/a/b/c/pod": {Bytes: 7, Inodes: 2}, "/x": {Bytes: 5, Inodes: 1}}
	of := disk.Usage{Bytes: 10, Inodes: 3}
	for _, tt := range []struct {
		dir   string
		whole bool
		want  disk.Usage
	}{
		{"/a/b/c", true, disk.Usage{Bytes: 3, Inodes: 1}},
		{"/a/b", false, of},
		{"/a/b/c/pod", true, disk.Usage{}},
		{"/x", true, disk.Usage{}},
		{"/x/y", false, disk.Usage{}},
		{"/xy", true, of},
		{"/a/b/cd", true, of},
	} {
		if got := outsidePods(tt.dir, tt.whole, of, pods); got != tt.want {
			t.Errorf("outsidePods(%s, %t) = %+v; want %+v", tt.dir, tt.whole, got, tt.want)
		}
	}
	u := NewUsages(UsageOptions{Rootfs: "/host"})
	for path, want := range map[string]string{"/host": "/", "/host/var": "/var"} {
		if got := u.seenByHost(path); got != want {
			t.Errorf("seenByHost(%s) = %s; want %s", path, got, want)
		}
	}
	if got := NewUsages(UsageOptions{}).seenByHost("/var"); got != "/var" {
		t.Errorf("seenByHost(/var) = %s", got)
	}
}
