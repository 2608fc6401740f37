package scenario

import (
	"time"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/shutdown"
)

// ShutdownKind is what a scenario of a shutdown begins with, with [APIVersion].
const ShutdownKind = "ShutdownScenario"

// shutdownFile is a scenario of a shutdown as it is written.
type shutdownFile struct {
	APIVersion      string             `yaml:"apiVersion"`
	Kind            string             `yaml:"kind"`
	Config          *configuration     `yaml:"config"`
	InhibitDelayMax *instant           `yaml:"inhibitDelayMax"` // absent: as long as the groups need
	Pods            []fileShutdownPod  `yaml:"pods"`
	Steps           []fileShutdownStep `yaml:"steps"`
}

type fileShutdownPod struct {
	filePod   `yaml:",inline"`
	DaemonSet bool `yaml:"daemonSet"`
	// StopsAfter is how long the pod takes to stop by itself; absent, it waits
	// to be killed.
	StopsAfter *instant `yaml:"stopsAfter"`
}

type fileShutdownStep struct {
	At     *instant          `yaml:"at"`
	Begin  bool              `yaml:"begin"`
	Cancel bool              `yaml:"cancel"`
	Add    []fileShutdownPod `yaml:"add"`
}

// Shutdown is a valid scenario of a shutdown, ready to be replayed.
type Shutdown struct {
	// Notices are what whoever wrote the file should know about it.
	Notices []strict.Problem

	schedule shutdown.Schedule
	allowed  *time.Duration // nil: as long as the schedule needs
	pods     []stoppable
	steps    []shutdownStep
}

// stoppable is a pod and how it stops.
type stoppable struct {
	evict.Pod
	stopsAfter *time.Duration // nil: never by itself
}

type shutdownStep struct {
	at    time.Duration
	event shutdown.Event
	add   []stoppable
}

// ParseShutdown reads a scenario of a shutdown; name is the file's, for
// messages. The error is a [strict.Problems] with everything that is wrong with
// it.
func ParseShutdown(name string, data []byte) (*Shutdown, error) {
	d, root, err := strict.Parse(name, data)
	if err != nil {
		return nil, err
	}
	var f shutdownFile
	d.Decode(root, &f)
	s := f.build(d)
	if err := d.Err(); err != nil {
		return nil, err
	}
	s.Notices = d.Notices()
	return s, nil
}

func (f *shutdownFile) build(d *strict.Decoder) *Shutdown {
	checkHeader(d, "apiVersion", f.APIVersion, APIVersion)
	checkHeader(d, "kind", f.Kind, ShutdownKind)
	s := &Shutdown{allowed: (*time.Duration)(f.InhibitDelayMax)}
	if c := (&file{Config: f.Config}).configuration(d); c != nil {
		if s.schedule = c.Schedule(); len(s.schedule) == 0 {
			d.Noticef("config", "plans no shutdown, so nobody is stopped; shutdownGracePeriod or shutdownGracePeriodByPodPriority does")
		}
	}
	m := members{keys: map[string]bool{}, uids: map[string]bool{}}
	s.pods = m.build(d, "pods", f.Pods)
	var order inOrder
	for i := range f.Steps {
		from := &f.Steps[i]
		path := strict.Index("steps", i)
		step := shutdownStep{at: order.next(d, path, from.At), add: m.build(d, path+".add", from.Add)}
		switch {
		case from.Begin && from.Cancel:
			d.Errorf(path+".cancel", "excludes begin; make them two steps")
		case from.Begin:
			step.event = shutdown.Begin
		case from.Cancel:
			step.event = shutdown.Cancel
		}
		s.steps = append(s.steps, step)
	}
	return s
}

// members sees that a scenario's pods can be told apart.
type members struct{ keys, uids map[string]bool }

func (m *members) build(d *strict.Decoder, path string, files []fileShutdownPod) []stoppable {
	pods := make([]stoppable, 0, len(files))
	for i := range files {
		at := d.At(strict.Index(path, i))
		p := stoppable{Pod: files[i].build(at).Pod, stopsAfter: (*time.Duration)(files[i].StopsAfter)}
		p.DaemonSet = files[i].DaemonSet
		switch {
		case p.Namespace == "" || p.Name == "":
		case m.keys[p.Key()]:
			at.Errorf("name", "pod %s is in this file already", p.Key())
		case m.uids[p.UID]:
			at.Errorf("uid", "%s is the UID of another pod of this file", strict.Quote(p.UID))
		}
		m.keys[p.Key()], m.uids[p.UID] = true, true
		pods = append(pods, p)
	}
	return pods
}
