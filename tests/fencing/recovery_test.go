package fencing

import "testing"

// TestCheckRecovery: a volume may be detached before its pod is removed, but neither before the out-of-service taint; no
// step may be missing.
func TestCheckRecovery(t *testing.T) {
	t.Parallel()
	swapped := func(a, b Kind) []Kind {
		kinds := []Kind{
			Lost, FenceCreated, Quarantined, CommandOff, "off is proven", "releasing", OutOfService, PodRemoved, AttachmentDeleted, InService,
			CommandOn, Booted, "recovered", Unquarantined,
		}
		for i, k := range kinds {
			switch k {
			case a:
				kinds[i] = b
			case b:
				kinds[i] = a
			}
		}
		return kinds
	}
	details := map[Kind]string{"off is proven": "Power-Management/Running/OffProven", "releasing": "Power-Management/Running/Releasing", "recovered": Recovered}
	for _, test := range []struct {
		name  string
		kinds []Kind
		ok    bool
	}{
		{"in order", swapped("", ""), true},
		{"volume before pod", swapped(PodRemoved, AttachmentDeleted), true},
		{"volume before taint", swapped(OutOfService, AttachmentDeleted), false},
		{"pod before taint", swapped(OutOfService, PodRemoved), false},
		{"volume after the removal of the taint", swapped(InService, AttachmentDeleted), false},
		{"off after its proof", swapped(CommandOff, "off is proven"), false},
		{"cut short", swapped("", "")[:13], false},
		{"without the volume", swapped(AttachmentDeleted, "nothing"), false},
	} {
		var events []Event
		for _, k := range test.kinds {
			e := Event{Kind: k, Object: "a", Node: "a"}
			if d := details[k]; d != "" {
				e.Kind, e.Detail = FenceChanged, d
			}
			events = append(events, e)
		}
		if err := CheckRecovery(events, "a"); (err == nil) != test.ok {
			t.Errorf("%s: CheckRecovery() = %v; want an error: %t", test.name, err, !test.ok)
		}
	}
}
