package shutdown

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestJudge(t *testing.T) {
	yes, no := true, false
	const at = "last heard of at 2030-01-02T03:04:05Z"
	for _, tt := range []struct {
		name   string
		before *Before
		trace  string
		want   Last
	}{
		{"the first start", nil, "", Last{nil, LastUnknown, ""}},
		{"a panic of some boot", nil, "/var/crash/2023/vmcore", Last{nil, LastUnknown, "/var/crash/2023/vmcore"}},
		{"a panic since", &Before{begin, false, false}, "/sys/fs/pstore/dmesg-efi-1", Last{&no, LastPanic, "/sys/fs/pstore/dmesg-efi-1"}},
		{"down in order", &Before{begin, true, true}, "", Last{&yes, LastShutdown, at}},
		{"a panic on the way down", &Before{begin, true, true}, "x", Last{&no, LastPanic, "x"}},
		{"not to the end", &Before{begin, true, false}, "", Last{&no, LastInterrupted, at}},
		{"stopped by hand before", &Before{begin, false, true}, "", Last{nil, LastNotRunning, at}},
		{"without a word", &Before{begin, false, false}, "", Last{&no, LastLost, at}},
	} {
		got := Judge(tt.before, tt.trace)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: Judge() differs (-want +got):\n%s", tt.name, diff)
		}
	}
}
