package shutdown

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestClassifyLastBoot(t *testing.T) {
	yes, no := true, false
	const at = "last state saved at 2030-01-02T03:04:05Z"
	for _, tt := range []struct {
		name     string
		previous *PreviousRun
		trace    string
		want     LastBoot
	}{
		{"the first start", nil, "", LastBoot{nil, LastUnknown, ""}},
		{"a panic of any boot", nil, "/var/crash/2023/vmcore", LastBoot{nil, LastUnknown, "/var/crash/2023/vmcore"}},
		{"a panic since the last state", &PreviousRun{begin, false, false}, "/sys/fs/pstore/dmesg-efi-1", LastBoot{&no, LastPanic, "/sys/fs/pstore/dmesg-efi-1"}},
		{"orderly shutdown", &PreviousRun{begin, true, true}, "", LastBoot{&yes, LastShutdown, at}},
		{"a panic during the shutdown", &PreviousRun{begin, true, true}, "x", LastBoot{&no, LastPanic, "x"}},
		{"interrupted shutdown", &PreviousRun{begin, true, false}, "", LastBoot{&no, LastInterrupted, at}},
		{"evictd stopped before", &PreviousRun{begin, false, true}, "", LastBoot{nil, LastNotRunning, at}},
		{"no notice", &PreviousRun{begin, false, false}, "", LastBoot{&no, LastLost, at}},
	} {
		got := ClassifyLastBoot(tt.previous, tt.trace)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: ClassifyLastBoot() differs (-want +got):\n%s", tt.name, diff)
		}
	}
}
