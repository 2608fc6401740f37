package scenario

import (
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/evict"
)

// build returns the pod of the file and reports errors to d, the decoder of that part.
func (f *filePod) build(d *strict.Decoder) pod {
	checkName(d, "namespace", f.Namespace)
	checkName(d, "name", f.Name)
	grace := int64(evict.DefaultGrace / time.Second)
	if f.TerminationGracePeriodSeconds != nil {
		grace = *f.TerminationGracePeriodSeconds
		if grace < 0 {
			d.Errorf("terminationGracePeriodSeconds", "%d is below 0", grace)
		}
	}
	f.Resources.Requests.checkPodLevel(d.At("resources.requests"))
	f.Resources.Limits.checkPodLevel(d.At("resources.limits"))
	p := pod{Pod: evict.Pod{
		UID: f.UID, Namespace: f.Namespace, Name: f.Name,
		Priority: f.Priority, PriorityClassName: f.PriorityClassName, Static: f.Static, Mirror: f.Mirror,
		TerminationGraceSeconds: &grace,
		Resources:               f.Resources.evict(),
		Overhead:                f.Overhead.amounts(),
		HasStats:                !f.NoStats,
	}}
	if p.UID == "" {
		p.UID = p.Key()
	}
	for i, t := range f.Tolerations {
		t.check(d.At(strict.Index("tolerations", i)))
		p.Tolerations = append(p.Tolerations, evict.Toleration{Key: t.Key, Operator: t.Operator, Value: t.Value, Effect: t.Effect})
	}
	f.buildContainers(d, &p)
	f.buildVolumes(d, &p)
	p.SetDefaults()
	f.Usage.check(d.At("usage"), &p)
	f.Usage.apply(&p)
	return p
}

func (f *filePod) buildContainers(d *strict.Decoder, p *pod) {
	seen := map[string]bool{}
	add := func(list string, i int, to *[]evict.Container, c evict.Container) {
		at := d.At(strict.Index(list, i))
		checkName(at, "name", c.Name)
		if seen[c.Name] && c.Name != "" {
			at.Errorf("name", "%s is the name of another container of this pod", strict.Quote(c.Name))
		}
		seen[c.Name] = true
		*to = append(*to, c)
	}
	for i, c := range f.Containers {
		add("containers", i, &p.Containers, c.evict())
	}
	for i, c := range f.InitContainers {
		switch c.RestartPolicy {
		case "", "Always":
		default:
			d.Errorf(strict.Index("initContainers", i)+".restartPolicy", "is %s; want Always, which makes it a sidecar, or nothing", strict.Quote(c.RestartPolicy))
		}
		container := c.evict()
		container.Sidecar = c.RestartPolicy == "Always"
		add("initContainers", i, &p.InitContainers, container)
	}
	for i, c := range f.EphemeralContainers {
		container := evict.Container{Name: c.Name}
		c.Usage.apply(&container)
		add("ephemeralContainers", i, &p.EphemeralContainers, container)
	}
}

func (f *fileContainer) evict() evict.Container {
	c := evict.Container{Name: f.Name, Resources: fileResources{f.Requests, f.Limits}.evict()}
	f.Usage.apply(&c)
	return c
}

func (f *filePod) buildVolumes(d *strict.Decoder, p *pod) {
	seen := map[string]bool{}
	add := func(at *strict.Decoder, v evict.Volume) {
		checkName(at, "name", v.Name)
		if seen[v.Name] && v.Name != "" {
			at.Errorf("name", "%s is the name of another volume of this pod", strict.Quote(v.Name))
		}
		seen[v.Name] = true
		p.Volumes = append(p.Volumes, v)
	}
	for i, e := range f.EmptyDirs {
		at := d.At(strict.Index("emptyDirs", i))
		v := evict.Volume{Name: e.Name, Type: evict.EmptyDir, Medium: e.Medium}
		if e.Medium != "" && e.Medium != "Memory" && !strings.HasPrefix(e.Medium, "HugePages") {
			at.Errorf("medium", `is %s; want "", Memory or HugePages`, strict.Quote(e.Medium))
		}
		if e.SizeLimit != nil {
			v.SizeLimit = &e.SizeLimit.Quantity
		}
		add(at, v)
	}
	for i, v := range f.Volumes {
		at := d.At(strict.Index("volumes", i))
		switch v.Type {
		case evict.HostPath, evict.ConfigMap, evict.GitRepo:
		case evict.EmptyDir:
			at.Errorf("type", "is emptyDir; list the volume in emptyDirs")
		default:
			if !at.Failed("type") {
				at.Errorf("type", "is %s; want hostPath, configMap or gitRepo; other types are not counted", strict.Quote(string(v.Type)))
			}
		}
		add(at, evict.Volume{Name: v.Name, Type: v.Type})
	}
}

// check reports a toleration that the API server would reject.
func (t fileToleration) check(d *strict.Decoder) {
	switch t.Operator {
	case "", "Equal":
		if t.Key == "" {
			d.Errorf("operator", "is %s; want Exists if the key is empty", strict.Quote(t.Operator))
		}
	case "Exists":
		if t.Value != "" {
			d.Errorf("value", "is %s; want none if the operator is Exists", strict.Quote(t.Value))
		}
	default:
		d.Errorf("operator", "is %s; want Exists or Equal", strict.Quote(t.Operator))
	}
	switch t.Effect {
	case "", "NoSchedule", "PreferNoSchedule", "NoExecute":
	default:
		d.Errorf("effect", "is %s; want NoSchedule, PreferNoSchedule, NoExecute or nothing", strict.Quote(t.Effect))
	}
}

// check reports volumes that the pod does not have.
func (u *podUsage) check(d *strict.Decoder, p *pod) {
	check := func(field string, volumes map[string]amount) {
		for _, name := range slices.Sorted(maps.Keys(volumes)) {
			if !slices.ContainsFunc(p.Volumes, func(v evict.Volume) bool { return v.Name == name }) {
				d.Errorf(strict.Key(field, name), "is not a volume of pod %s; list it in its emptyDirs or volumes", p.Key())
			}
		}
	}
	check("volumes", u.Volumes)
	check("volumesInodes", u.VolumesInodes)
}

// apply sets the fields of the pod's usage that are present.
func (u *podUsage) apply(p *pod) {
	if u.Memory != nil {
		p.memory = (*int64)(u.Memory)
	}
	p.Usage.PIDs = u.PIDs.or(p.Usage.PIDs)
	for i := range p.Volumes {
		v := &p.Volumes[i]
		if used, ok := u.Volumes[v.Name]; ok {
			v.Used = int64(used)
		}
		if inodes, ok := u.VolumesInodes[v.Name]; ok {
			v.Inodes = int64(inodes)
		}
	}
}

// apply sets the fields of the container's usage that are present.
func (u *containerUsage) apply(c *evict.Container) {
	c.Usage.Memory = u.Memory.or(c.Usage.Memory)
	c.Usage.Rootfs = u.Rootfs.or(c.Usage.Rootfs)
	c.Usage.Logs = u.Logs.or(c.Usage.Logs)
	c.Usage.Inodes = u.Inodes.or(c.Usage.Inodes)
	c.Usage.LogsInodes = u.LogsInodes.or(c.Usage.LogsInodes)
	c.Usage.ImagesBytes = u.Images.or(c.Usage.ImagesBytes)
}

// check reports volumes and containers that the pod does not have.
func (u *stepUsage) check(d *strict.Decoder, p *pod) {
	u.podUsage.check(d, p)
	for _, name := range slices.Sorted(maps.Keys(u.Containers)) {
		if p.container(name) == nil {
			d.Errorf(strict.Key("containers", name), "is not a container of pod %s", p.Key())
		}
	}
}

func (u *stepUsage) apply(p *pod) {
	u.podUsage.apply(p)
	for name, usage := range u.Containers {
		if c := p.container(name); c != nil {
			usage.apply(c)
		}
	}
}

// container returns the pod's container with a name, or nil.
func (p *pod) container(name string) *evict.Container {
	for _, cs := range [][]evict.Container{p.Containers, p.InitContainers, p.EphemeralContainers} {
		for i := range cs {
			if cs[i].Name == name {
				return &cs[i]
			}
		}
	}
	return nil
}

// clone returns a copy whose usage can be changed independently.
func (p *pod) clone() *pod {
	c := *p
	c.Containers = slices.Clone(p.Containers)
	c.InitContainers = slices.Clone(p.InitContainers)
	c.EphemeralContainers = slices.Clone(p.EphemeralContainers)
	c.Volumes = slices.Clone(p.Volumes)
	return &c
}

// checkName reports a name that is missing or would be ambiguous in the output.
func checkName(d *strict.Decoder, field, name string) {
	switch {
	case d.Failed(field):
	case name == "":
		d.Errorf(field, "is missing")
	case len(name) > 253 || strings.ContainsFunc(name, func(r rune) bool {
		return r == '/' || unicode.IsSpace(r) || !unicode.IsPrint(r)
	}):
		d.Errorf(field, "%s is not a valid name; want at most 253 printable characters without / and spaces", strict.Quote(name))
	}
}
