package shutdown

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestJudge(t *testing.T) {
	yes, no := true, false
	const at = "last state saved at 2030-01-02T03:04:05Z"
	for _, tt := range []struct {
		name   string
		before *Before
		trace  string
		want   Last
	}{
		{"the first start", nil, "", Last{nil, LastUnknown, ""}},
		{"a panic of any boot", nil, "/var/crash/2023/vmcore", Last{nil, LastUnknown, "/var/crash/2023/vmcore"}},
		{"a panic since the last state", &Before{begin, false, false}, "/sys/fs/pstore/dmesg-efi-1", Last{&no, LastPanic, "/sys/fs/pstore/dmesg-efi-1"}},
		{"orderly shutdown", &Before{begin, true, true}, "", Last{&yes, LastShutdown, at}},
		{"a panic during the shutdown", &Before{begin, true, true}, "x", Last{&no, LastPanic, "x"}},
		{"interrupted shutdown", &Before{begin, true, false}, "", Last{&no, LastInterrupted, at}},
		{"evictd stopped before", &Before{begin, false, true}, "", Last{nil, LastNotRunning, at}},
		{"no notice", &Before{begin, false, false}, "", Last{&no, LastLost, at}},
	} {
		got := Judge(tt.before, tt.trace)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: Judge() differs (-want +got):\n%s", tt.name, diff)
		}
	}
}
