package fence

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// stormSlack is how much longer than Cooldown the record of a storm lasts. Of all fences that wait, one saves the
// record again, and not before the slack is over: one write a minute in the whole cluster.
const stormSlack = time.Minute

// StormRecord is what the storm policy must remember of a fence, so that neither a new controller nor the deletion of
// an earlier fence begins with a full rate or without a cooldown.
//
// +kubebuilder:object:generate=true
type StormRecord struct {
	// Started is when the fence, or an earlier one of the node, began to act last.
	Started metav1.MicroTime `json:"started,omitzero"`
	// RateFull is when the rate allows the whole burst again, after this start and all before.
	RateFull metav1.MicroTime `json:"rateFull,omitzero"`
	// Until is when the cooldown after the storm that was seen last ends.
	Until metav1.MicroTime `json:"until,omitzero"`
	// Reported is when the message of the condition StormHold was written last.
	Reported metav1.MicroTime `json:"reported,omitzero"`
}

// Inherit takes over what must be remembered of the earlier fence of the node, which is deleted: that of the storm
// policy; and, if the Node object was deleted before its machine booted again, that pods were released because it was
// cut off from their storage.
func (s *State) Inherit(earlier *State) {
	s.Storm = earlier.Storm
	s.Storm.Reported = metav1.MicroTime{}
	was, is := earlier.Target.BootID, s.Target.BootID
	if booted := was != "" && is != "" && was != is; earlier.Result == NodeGone && earlier.storageReleased() && !booted {
		s.Storage = &StorageFence{Released: earlier.Storage.Released}
	}
}

// NeededUntil returns until when a finished fence must not be deleted, unless another fence inherits its record: the
// storm policy would forget that it was.
func (s *State) NeededUntil() time.Time {
	r := &s.Storm
	needed := latest(r.RateFull.Time, r.Until.Time)
	if r.Started.IsZero() {
		return needed
	}
	return latest(needed, r.Started.Add(zoneInterval))
}

// rate limits how fast fences begin: a token bucket of Burst tokens, to which Rate adds one. Its level is kept as the
// time at which it is full, so that the latest of all fences tells it.
func rate(c *census, p Policy) (reason, message string) {
	if c.begun() {
		return "", ""
	}
	if p.Rate <= 0 || p.Burst <= 0 {
		return ReasonRate, fmt.Sprintf("rate is %s and burst %d, with which no fence begins", p.Rate, p.Burst)
	}
	next := c.full.Add(-time.Duration(p.Burst-1) * p.Rate)
	if !c.now.Before(next) {
		return "", ""
	}
	return ReasonRate, fmt.Sprintf("at most %d fences begin at once, and one each %s; the next begins at %s",
		p.Burst, p.Rate, next.UTC().Format(time.RFC3339))
}

// rateFull returns when the rate is full again if the fence of the target begins now.
func (c *census) rateFull(p Policy) time.Time {
	if c.begun() {
		return time.Time{}
	}
	return latest(c.full, c.now).Add(p.Rate)
}

// cooldown keeps the gate closed after a storm.
func cooldown(c *census, p Policy) (reason, message string) {
	if !c.now.Before(c.until) {
		return "", ""
	}
	return ReasonCooldown, fmt.Sprintf("too many nodes were unhealthy until recently; after a cooldown of %s, fences go on at %s",
		p.Cooldown, c.until.UTC().Format(time.RFC3339))
}

// stormUntil returns the end of the cooldown after a storm that is seen now, zero if a fence has recorded one that is
// late enough.
func (c *census) stormUntil(p Policy) time.Time {
	if p.Cooldown <= 0 || !c.until.Before(c.now.Add(p.Cooldown)) {
		return time.Time{}
	}
	return c.now.Add(p.Cooldown + stormSlack)
}
