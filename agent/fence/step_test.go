package fence

import (
	"strings"
	"testing"
	"time"
)

func TestTimelines(t *testing.T) {
	for _, c := range timelines {
		t.Run(c.name, func(t *testing.T) {
			s := newSimulation(t, powerPlan(level(true, "bmc")))
			s.until = time.Hour
			c.setup(s)
			got := strings.Join(s.run(), "\n")
			if want := strings.TrimSpace(c.want); got != want {
				t.Errorf("timeline:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

type timeline struct {
	name  string
	setup func(*simulation)
	want  string
}

var timelines = []timeline{
	{"fenced and back", func(*simulation) {}, ""},
	{"bmc ignores commands", func(s *simulation) { s.devices["bmc"].ignores = true; s.until = 2 * time.Hour }, ""},
}
