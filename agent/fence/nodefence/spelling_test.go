package nodefence

import (
	"strings"
	"testing"

	"github.com/evictd/evictd/agent/fence"
)

func TestNormalize(t *testing.T) {
	for _, tt := range []struct {
		step, status string
		wantStep     fence.StepName
		wantStatus   fence.Status
		errs         []string // words of the error
	}{
		{"Isolation", "New", fence.Isolation, fence.New, nil},
		{"isolation", "new", fence.Isolation, fence.New, nil},
		{"Power-Management", "Done", fence.PowerManagement, fence.Done, nil},
		{"power_management", "RUNNING", fence.PowerManagement, fence.Running, nil},
		{"power_managment", "done", fence.PowerManagement, fence.Done, nil},
		{"Power-Managment", "Error", fence.PowerManagement, fence.Error, nil},
		{"recover", "error", fence.Recovery, fence.Error, nil},
		{"RECOVERY", "Running", fence.Recovery, fence.Running, nil},

		{"", "", "", "", []string{`step is ""`, `status is ""`}},
		{"powermanagement", "New", "powermanagement", fence.New, []string{`step is "powermanagement"`}},
		{"isolation ", "New", "isolation ", fence.New, []string{`step is "isolation "`}},
		{"recovery", "finished", fence.Recovery, "finished",
			[]string{"NodeFence node-fence-a", `status is "finished"`, "New, Running, Done or Error"}},
	} {
		f := NodeFence{Progress: fence.Progress{Step: fence.StepName(tt.step), Status: fence.Status(tt.status)}}
		f.Name = ObjectName("a")
		err := f.Normalize()
		if f.Step != tt.wantStep || f.Status != tt.wantStatus || (err != nil) != (tt.errs != nil) {
			t.Errorf("Normalize of %q, %q = %q, %q, %v; want %q, %q",
				tt.step, tt.status, f.Step, f.Status, err, tt.wantStep, tt.wantStatus)
		}
		for _, want := range tt.errs {
			if err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("Normalize of %q, %q: %v; want %s", tt.step, tt.status, err, want)
			}
		}
	}
}
