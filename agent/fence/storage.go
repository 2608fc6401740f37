package fence

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// storageReleased reports whether pods were released because the node was cut off from their storage. Its machine may
// still have data to write to that storage.
func (s *State) storageReleased() bool { return s.Storage != nil && !s.Storage.Released.IsZero() }

// isolated returns the devices that the level in use of Isolation switches off, and the storage that the node is then
// cut off from.
func (s *State) isolated() (devices, releases []string) {
	if s.Step != Isolation || int(s.Level) >= len(s.Plan.Isolation) {
		return nil, nil
	}
	for _, m := range s.Plan.Isolation[s.Level].Methods {
		if m.Action != Off {
			continue
		}
		releases = append(releases, m.Releases...)
		if !slices.Contains(devices, m.Device) {
			devices = append(devices, m.Device)
		}
	}
	return devices, releases
}

// releasedBy reports whether a volume is on storage that a node is cut off from. Unknown storage is not.
func (v Volume) releasedBy(releases []string) bool {
	return v.Driver != "" && slices.Contains(releases, v.Driver) || v.Class != "" && slices.Contains(releases, v.Class)
}

// cutOff returns the pods that use volumes, and all of them on storage that the node is cut off from. A pod with one
// more volume could still write to that.
func (l Load) cutOff(releases []string) []Pod {
	var pods []Pod
	for _, p := range l.Evicted() {
		foreign := func(v Volume) bool { return !v.releasedBy(releases) }
		if len(p.Volumes) > 0 && !slices.ContainsFunc(p.Volumes, foreign) {
			pods = append(pods, p)
		}
	}
	return pods
}

// unused returns the VolumeAttachments of storage that the node is cut off from, whose volume no pod of the node uses.
func (l Load) unused(releases []string) []Attachment {
	var attachments []Attachment
	for _, a := range l.Attachments {
		if a.Volume.releasedBy(releases) && len(a.Pods) == 0 && !a.KeptByPod {
			attachments = append(attachments, a)
		}
	}
	return attachments
}

// takeStorageReadings adds the new readings of the devices that cut the node off from storage. For each of them the
// state has the first and the last reading off, with no other reading between them, or the last one if that is not off.
func (r *run) takeStorageReadings() {
	s := r.s
	devices, releases := s.isolated()
	if s.Storage == nil {
		return // nothing was read
	}
	if s.Status != Done || len(releases) == 0 {
		s.Storage.Readings, s.Storage.Proven = nil, metav1.MicroTime{}
		return
	}
	// The clock was set back, or that of the controller before was ahead.
	s.Storage.Readings = slices.DeleteFunc(s.Storage.Readings, func(x Reading) bool { return x.Started.After(r.now) })
	fresh := slices.Clone(r.in.Readings)
	slices.SortStableFunc(fresh, func(a, b Reading) int { return a.Ended.Compare(b.Ended.Time) })
	for _, x := range fresh {
		if slices.Contains(devices, x.Device) {
			r.takeStorageReading(x)
		}
	}
}

func (r *run) takeStorageReading(x Reading) {
	s, f := r.s, r.s.Storage
	x.Started, x.Ended = microTime(x.Started.Time), microTime(x.Ended.Time)
	if x.Ended.IsZero() || x.Ended.After(r.now) {
		x.Ended = metav1.NewMicroTime(r.now)
	}
	if x.Power == PowerOff && s.isolationChecks(x.Device) && SameMachine(x.UUID, s.Target.SystemUUID) != Yes {
		x.Power = PowerUnknown
	}
	other := func(o Reading) bool { return o.Device == x.Device && (x.Power != PowerOff || o.Power != PowerOff) }
	first, last := firstOff(f.Readings, x.Device), lastOf(f.Readings, x.Device)
	switch {
	case x.Power == PowerOff && (!x.Started.After(s.LastAct.Time) || !x.Started.After(f.On.Time)),
		x.Power == PowerOff && last != nil && !x.Started.After(last.Started.Time),
		!x.Ended.After(s.LastAct.Time):
		return // of a time before the device was switched off, or before another reading
	case x.Power == PowerOn:
		r.storageOn = x.Device
		f.On = metav1.NewMicroTime(latest(f.On.Time, x.Ended.Time))
	case x.Power == PowerOff && first != nil && first != last:
		*last = x
		return
	}
	f.Readings = append(slices.DeleteFunc(f.Readings, other), x)
}

// isolationChecks reports whether a method of Isolation with the device compares the UUID.
func (s *State) isolationChecks(device string) bool {
	for _, m := range s.Plan.Isolation[s.Level].Methods {
		if m.Device == device && m.Identity != CheckNone {
			return true
		}
	}
	return false
}

// releaseStorage releases the pods that use only storage that the node is cut off from, and then their volumes, while
// each device of the level is read off. The node needs no taint: pods with other volumes stay. It reports whether the
// state changed.
func (r *run) releaseStorage() bool {
	s, t := r.s, r.timings()
	devices, releases := s.isolated()
	if len(releases) == 0 {
		return false
	}
	if s.Storage == nil {
		s.Storage = &StorageFence{}
	}
	f := s.Storage
	proven := !f.Proven.IsZero()
	if r.storageOn != "" && (proven || s.storageReleased()) {
		f.Readings, f.Proven = nil, metav1.MicroTime{}
		r.fail(ReasonProofVoid, "device "+r.storageOn+" reads on: the node is no longer cut off from its storage, nothing more is released")
		return true
	}
	if r.counts(s.LastAct.Time, f.On.Time) {
		r.readFrom(f.Readings, devices, s.LastAct.Time, t.ProofInterval.Duration)
	}
	switch off := r.storageOff(devices); {
	case !off && proven:
		f.Proven = metav1.MicroTime{}
		r.note(warning(ReasonProofVoid, "a device of the storage could not be read off: nothing more is released until it is"))
		return false
	case !off:
		return false
	case !proven:
		f.Proven = metav1.NewMicroTime(r.now)
		r.note(normal(ReasonStorageProven, r.would("release the pods that use only "+strings.Join(releases, ", ")+
			": two readings of each device prove that the node is cut off from it")))
		return false
	}
	for _, d := range devices {
		if !lastOf(f.Readings, d).Started.After(f.Proven.Time) {
			return false // once more before the first act
		}
	}
	r.releaseVolumes(releases)
	return false
}

// releaseVolumes orders the deletion of pods, and of the VolumeAttachments that none uses any more.
func (r *run) releaseVolumes(releases []string) {
	s, l := r.s, r.in.Load
	var attachments []Attachment
	pods := l.cutOff(releases)
	if l.AttachmentsKnown && s.storageReleased() {
		attachments = l.unused(releases)
	}
	if !l.PodsKnown || len(pods)+len(attachments) == 0 || s.DryRun || !r.mayAct() {
		return
	}
	if !s.storageReleased() {
		s.Storage.Released = metav1.NewMicroTime(r.now)
		r.note(warning(ReasonStorageReleased, fmt.Sprintf("%d pods and then their volumes are released, because the node is "+
			"cut off from their storage: %s; the node must boot again before it may use that storage", len(pods), named(pods, nil))))
	}
	r.orders.Delete, r.orders.Detach = pods, attachments
}

// storageOff reports whether each device was read off twice, ProofInterval apart, and just now.
func (r *run) storageOff(devices []string) bool {
	s, t := r.s, r.timings()
	for _, d := range devices {
		first, last := firstOff(s.Storage.Readings, d), lastOf(s.Storage.Readings, d)
		span := t.ProofInterval.Duration
		if s.isolationUnknown(d) {
			span = max(span, t.Settle.Duration)
		}
		if first == nil || first == last || last.Started.Sub(first.Ended.Time) < span {
			return false
		}
		if r.now.Sub(last.Started.Time) > t.ProofTimeout.Duration {
			return false
		}
	}
	return len(devices) > 0
}

// isolationUnknown reports whether an act on the device has no known outcome: one that is executed late may be another
// one than the last.
func (s *State) isolationUnknown(device string) bool {
	return slices.ContainsFunc(s.Acts, func(a Act) bool {
		return a.Outcome.Kind == Unknown && a.Step == Isolation && int(a.Level) < len(s.Plan.Isolation) &&
			int(a.Index) < len(s.Plan.Isolation[a.Level].Methods) &&
			s.Plan.Isolation[a.Level].Methods[a.Index].Device == device
	})
}

// rebootNeeded reports whether the node must boot again before its isolation may be undone: the machine would write
// what it has in memory to volumes that another node uses now.
func (r *run) rebootNeeded() bool { return r.s.storageReleased() && !r.rebooted() }

// awaitsReboot reports whether the fence is one that [run.awaitReboot] holds back, or did.
func (s *State) awaitsReboot() bool {
	return s.storageReleased() && s.Step == PowerManagement && s.Status == New
}

// awaitReboot keeps a node that is Ready with its old boot ID cut off. Nothing is switched off while it is Ready.
func (r *run) awaitReboot() bool {
	s := r.s
	if s.Step == Isolation {
		s.Retries, s.Level, s.NextAttempt, s.Deadline = 0, 0, metav1.MicroTime{}, metav1.MicroTime{}
		r.to(PowerManagement, New, "", warning(ReasonRebootNeeded, "the node is Ready with the boot ID that it had before its "+
			"pods were released; it stays cut off from their storage"))
	}
	r.set(ConditionWaiting, ReasonRebootNeeded, "pods of this node were released because it was cut off from their storage; "+
		"it stays cut off and in quarantine until it has booted again: reboot it")
	return false
}
