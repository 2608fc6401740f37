package scenario

import (
	"time"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/shutdown"
)

// ShutdownKind is the kind of a shutdown scenario file, with [APIVersion].
const ShutdownKind = "ShutdownScenario"

// shutdownFile is the YAML form of a shutdown scenario.
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
	// StopsAfter is how long the pod takes to stop by itself. If it is absent, the pod
	// stops only when it is killed.
	StopsAfter *instant `yaml:"stopsAfter"`
}

type fileShutdownStep struct {
	At     *instant          `yaml:"at"`
	Begin  bool              `yaml:"begin"`
	Cancel bool              `yaml:"cancel"`
	Add    []fileShutdownPod `yaml:"add"`
}

// Shutdown is a valid shutdown scenario that can be replayed.
type Shutdown struct {
	// Notices are hints for the author of the file.
	Notices []strict.Problem

	schedule shutdown.Schedule
	allowed  *time.Duration // nil: as long as the schedule needs
	pods     []shutdownPod
	steps    []shutdownStep
}

// shutdownPod is a pod and how it stops.
type shutdownPod struct {
	evict.Pod
	stopsAfter *time.Duration // nil: never by itself
}

type shutdownStep struct {
	at    time.Duration
	event shutdown.Event
	add   []shutdownPod
}

// ParseShutdown parses a shutdown scenario. name is the file's name for messages. The
// error is a [strict.Problems] with all errors.
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
		if s.schedule = c.ShutdownSchedule(); len(s.schedule) == 0 {
			d.Noticef("config", "configures no graceful shutdown, so no pod is stopped; set shutdownGracePeriod or shutdownGracePeriodByPodPriority")
		}
	}
	m := podIdentities{keys: map[string]bool{}, uids: map[string]bool{}}
	s.pods = m.build(d, "pods", f.Pods)
	var order stepOrder
	for i := range f.Steps {
		from := &f.Steps[i]
		path := strict.Index("steps", i)
		step := shutdownStep{at: order.next(d, path, from.At), add: m.build(d, path+".add", from.Add)}
		switch {
		case from.Begin && from.Cancel:
			d.Errorf(path+".cancel", "can't be in the same step as begin; make them two steps")
		case from.Begin:
			step.event = shutdown.Begin
		case from.Cancel:
			step.event = shutdown.Cancel
		}
		s.steps = append(s.steps, step)
	}
	return s
}

// podIdentities checks that the pods of a file have different names and UIDs.
type podIdentities struct{ keys, uids map[string]bool }

func (m *podIdentities) build(d *strict.Decoder, path string, files []fileShutdownPod) []shutdownPod {
	pods := make([]shutdownPod, 0, len(files))
	for i := range files {
		at := d.At(strict.Index(path, i))
		p := shutdownPod{Pod: files[i].build(at).Pod, stopsAfter: (*time.Duration)(files[i].StopsAfter)}
		p.DaemonSet = files[i].DaemonSet
		switch {
		case p.Namespace == "" || p.Name == "":
		case m.keys[p.Key()]:
			at.Errorf("name", "pod %s is in this file twice", p.Key())
		case m.uids[p.UID]:
			at.Errorf("uid", "%s is the UID of another pod of this file", strict.Quote(p.UID))
		}
		m.keys[p.Key()], m.uids[p.UID] = true, true
		pods = append(pods, p)
	}
	return pods
}
