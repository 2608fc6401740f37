package kernel_test

import (
	"testing"

	"github.com/evictd/evictd/kernel"
)

func TestPath(t *testing.T) {
	for _, tt := range []struct {
		fs   kernel.FS
		elem []string
		want string
	}{
		{"/proc", []string{"meminfo"}, "/proc/meminfo"},
		{"/proc", nil, "/proc"},
		{"/host/proc/", []string{"1", "stat"}, "/host/proc/1/stat"},
		{"/sys/fs/cgroup", []string{"memory", "/kubepods/pod1"}, "/sys/fs/cgroup/memory/kubepods/pod1"},
	} {
		if got := tt.fs.Path(tt.elem...); got != tt.want {
			t.Errorf("FS(%q).Path(%q) = %q; want %q", tt.fs, tt.elem, got, tt.want)
		}
	}
}
