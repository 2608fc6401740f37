package execute

import (
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestLeft: a pod that starts after the end of its request does nothing, also on a node whose clock is behind.
func TestLeft(t *testing.T) {
	const timeout = 53 * time.Second
	made := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	r := Request{NotAfter: metav1.NewMicroTime(made.Add(timeout)), Timeout: metav1.Duration{Duration: timeout}}
	for _, tt := range []struct {
		name string
		// behind is how far the node's clock is behind; mounted and starts are true times since the request was made.
		behind, mounted, starts time.Duration
		left                    time.Duration
		err                     string
	}{
		{"at once", 0, time.Second, 2 * time.Second, 51 * time.Second, ""},
		{"late", 0, time.Second, 54 * time.Second, 0, "the pod started late, or the clocks differ"},
		{"clock a little behind", 5 * time.Second, time.Second, 2 * time.Second, 52 * time.Second, ""},
		{"clock a little behind, late", 5 * time.Second, time.Second, 55 * time.Second, 0, "the pod started late, 54s after its request was mounted"},
		{"clock a little ahead", -5 * time.Second, time.Second, 2 * time.Second, 46 * time.Second, ""},
		{"clock ahead", -10 * time.Minute, time.Second, 2 * time.Second, 0, "the pod started late, or the clocks differ"},
		{"clock behind", 10 * time.Minute, time.Second, 2 * time.Second, 0, "its clock is 9m59s behind that of evictd-controller"},
		{"clock behind, late by as much", 10 * time.Minute, time.Second, 10*time.Minute + 2*time.Second, 0, "its clock is 9m59s behind"},
		{"clock behind by the tolerance, mounted late", 40 * time.Second, 40 * time.Second, 80 * time.Second, 13 * time.Second, ""},
		{"the same, started later", 40 * time.Second, 40 * time.Second, 94 * time.Second, 0, "the pod started late"},
	} {
		at := func(d time.Duration) time.Time { return made.Add(d - tt.behind) }
		left, err := r.left(at(tt.starts), at(tt.mounted))
		if left != tt.left || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: left = %v, %v; want %v, %q", tt.name, left, err, tt.left, tt.err)
		}
	}
	if _, err := r.left(made, made.Add(time.Minute)); err == nil || !strings.Contains(err.Error(), "its clock was set back by 1m0s") {
		t.Errorf("clock set back: %v; want an error", err)
	}
}

// TestRunLate: the time since the file of a request was written counts, and not only its notAfter.
func TestRunLate(t *testing.T) {
	for name, tt := range map[string]struct {
		notAfter, mounted time.Duration // from now
		err               string
	}{
		"image pulled for long, clock set back": {time.Minute, -2 * time.Minute, "node n2: its clock is 2m0s behind"},
		"image pulled for long":                 {30 * time.Second, -59 * time.Second, ""},
		"longer":                                {29 * time.Second, -60 * time.Second, "the pod started late, 1m0s after its request was mounted"},
		"clock behind":                          {10 * time.Minute, 0, "node n2: its clock is 9m0s behind"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := request(Off)
			r.NotAfter = metav1.NewMicroTime(time.Now().Add(tt.notAfter))
			text, err := r.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			o := files(t, text, "")
			mounted := time.Now().Add(tt.mounted)
			if err := os.Chtimes(o.Request, mounted, mounted); err != nil {
				t.Fatal(err)
			}
			report, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			_, err = os.Stat(o.AgentsDirectory + "/input")
			ran := err == nil
			if ran && tt.err != "" || !strings.Contains(report.Error, tt.err) || tt.err != "" && report.Result != NotStarted {
				t.Errorf("Run = %+v, ran: %t; want error %q", report, ran, tt.err)
			}
		})
	}
}
