package redfish

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/evictd/evictd/agent/fence"
)

// object is a JSON object. Keys are exact: a struct of encoding/json would also accept "powerstate" for "PowerState",
// and the last one of several.
type object map[string]json.RawMessage

// parseObject parses a JSON object and nothing after it. A key that occurs twice is an error.
func parseObject(data []byte) (object, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	o := object{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("not valid JSON: %w", err)
		}
		key, _ := t.(string) // what else a key is, More and Token refuse
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, fmt.Errorf("not valid JSON: %w", err)
		}
		if _, twice := o[key]; twice {
			return nil, fmt.Errorf("the key %s occurs twice", quote(key))
		}
		o[key] = value
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("not valid JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more after the JSON object")
	}
	return o, nil
}

// has reports whether there is a value that is not null.
func (o object) has(key string) bool {
	value, ok := o[key]
	return ok && string(value) != "null"
}

// text returns a string. It is an error if there is none.
func (o object) text(key string) (string, error) {
	if !o.has(key) {
		return "", fmt.Errorf("%s is missing", key)
	}
	var text string
	if err := json.Unmarshal(o[key], &text); err != nil {
		return "", fmt.Errorf("%s is not a string", key)
	}
	return text, nil
}

// object returns an object of an object.
func (o object) object(key string) (object, error) {
	if !o.has(key) {
		return nil, fmt.Errorf("%s is missing", key)
	}
	inner, err := parseObject(o[key])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return inner, nil
}

// objects returns an array of objects.
func (o object) objects(key string) ([]object, error) {
	var values []json.RawMessage
	if !o.has(key) {
		return nil, fmt.Errorf("%s is missing", key)
	}
	if err := json.Unmarshal(o[key], &values); err != nil {
		return nil, fmt.Errorf("%s is not an array", key)
	}
	all := make([]object, len(values))
	for i, v := range values {
		var err error
		if all[i], err = parseObject(v); err != nil {
			return nil, fmt.Errorf("%s: element %d: %w", key, i, err)
		}
	}
	return all, nil
}

// link returns the URI of another resource.
func (o object) link(key string) (string, error) {
	uri, err := o.text(key)
	if err != nil {
		return "", err
	}
	if err := checkLink(uri); err != nil {
		return "", fmt.Errorf("%s is %w", key, err)
	}
	return uri, nil
}

// reference returns the URI of another resource in an object of its own:
//
//	"Systems": {"@odata.id": "/redfish/v1/Systems"}
func (o object) reference(key string) (string, error) {
	inner, err := o.object(key)
	if err != nil {
		return "", err
	}
	uri, err := inner.link("@odata.id")
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	return uri, nil
}

const serviceRoot = "/redfish/v1/"

// linkPattern is a path below the service root, without what a URI could have in addition, and without escapes.
var linkPattern = regexp.MustCompile(`^/redfish/v1(/[A-Za-z0-9._~:@!$&'()*+,;=-]+)+/?$`)

// checkLink returns an error unless a link is the path of a resource of the same BMC.
func checkLink(uri string) error {
	const longest = 512
	if len(uri) > longest || !linkPattern.MatchString(uri) || path.Clean(uri) != strings.TrimSuffix(uri, "/") {
		return fmt.Errorf("%s, which is not the path of a resource of this BMC", quote(uri))
	}
	return nil
}

// sameResource reports whether two paths are those of one resource: with or without a slash at the end.
func sameResource(a, b string) bool { return strings.TrimSuffix(a, "/") == strings.TrimSuffix(b, "/") }

// quote returns a value of a BMC for a message: quoted, and bounded.
func quote(value string) string {
	const longest = 64
	if len(value) > longest {
		return fmt.Sprintf("%+q…", strings.ToValidUTF8(value[:longest], ""))
	}
	return fmt.Sprintf("%+q", value)
}

// member returns the URI of the system that is named in a collection of systems, of the only one without a name:
//
//	{"Members@odata.count": 1, "Members": [{"@odata.id": "/redfish/v1/Systems/1"}]}
func (o object) member(name string) (string, error) {
	members, err := o.objects("Members")
	if err != nil {
		return "", err
	}
	if o.has("Members@odata.nextLink") {
		return "", errors.New("the collection has several pages, which are not supported")
	}
	var count int
	if key := "Members@odata.count"; o.has(key) {
		if err := json.Unmarshal(o[key], &count); err != nil || count != len(members) {
			return "", fmt.Errorf("%s is not the number of members, %d", key, len(members))
		}
	}
	var names, found []string
	for _, m := range members {
		uri, err := m.link("@odata.id")
		if err != nil {
			return "", fmt.Errorf("member: %w", err)
		}
		base := path.Base(uri)
		names = append(names, quote(base))
		if name == "" || name == base {
			found = append(found, uri)
		}
	}
	const shown = 8
	if len(names) > shown {
		names = append(names[:shown], "…")
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1 && name == "":
		return "", fmt.Errorf("the BMC has %d systems: set system to one of %s", len(found), strings.Join(names, ", "))
	case len(found) > 1:
		return "", fmt.Errorf("the BMC has %d systems %s", len(found), name)
	case len(names) > 0:
		return "", fmt.Errorf("the BMC has no system %s: set system to one of %s", name, strings.Join(names, ", "))
	}
	return "", errors.New("the BMC has no system")
}

// system is the resource of a machine.
type system struct {
	uri string
	object
}

// power returns the state of the power. PoweringOn, PoweringOff, Paused and what later versions add are unknown.
func (s system) power() (fence.Power, error) {
	switch state, err := s.text("PowerState"); {
	case err != nil:
		return fence.PowerUnknown, err
	case state == "Off":
		return fence.PowerOff, nil
	case state == "On":
		return fence.PowerOn, nil
	default:
		return fence.PowerUnknown, fmt.Errorf("PowerState is %s, which is neither Off nor On", quote(state))
	}
}

// uuid returns the UUID of the machine, empty if it has none.
func (s system) uuid() (string, error) {
	if !s.has("UUID") {
		return "", nil
	}
	uuid, err := s.text("UUID")
	if err != nil {
		return "", err
	}
	const longest = 64
	if len(uuid) > longest {
		return "", fmt.Errorf("UUID has %d characters", len(uuid))
	}
	return uuid, nil
}

// resetAction returns the action that resets the machine, and its URI, which must be the machine's own: a BMC of
// several machines, and the BMC itself, have other targets.
//
//	"Actions": {"#ComputerSystem.Reset": {
//	    "target": "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset",
//	    "ResetType@Redfish.AllowableValues": ["On", "ForceOff"]}}
func (s system) resetAction() (action object, target string, err error) {
	actions, err := s.object.object("Actions")
	if err != nil {
		return nil, "", err
	}
	if action, err = actions.object("#ComputerSystem.Reset"); err != nil {
		return nil, "", err
	}
	if target, err = action.link("target"); err != nil {
		return nil, "", err
	}
	if own := strings.TrimSuffix(s.uri, "/") + "/Actions/"; !strings.HasPrefix(target, own) {
		return nil, "", fmt.Errorf("the target of the reset is %s, which is not below %s", quote(target), own)
	}
	return action, target, nil
}

// allowed returns the types of reset in an action, or in its ActionInfo, under a key.
func (o object) allowed(key string) ([]string, error) {
	var types []string
	if err := json.Unmarshal(o[key], &types); err != nil {
		return nil, fmt.Errorf("%s is not an array of strings", key)
	}
	return types, nil
}

// allowedInfo returns the types of reset in an ActionInfo:
//
//	{"Parameters": [{"Name": "ResetType", "AllowableValues": ["On", "ForceOff"]}]}
func (o object) allowedInfo() ([]string, error) {
	all, err := o.objects("Parameters")
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if name, err := p.text("Name"); err == nil && name == "ResetType" && p.has("AllowableValues") {
			return p.allowed("AllowableValues")
		}
	}
	return nil, errors.New("AllowableValues of ResetType is missing")
}

// choose returns the first of the wanted types of reset that is allowed.
func choose(wanted, allowed []string) (string, error) {
	for _, t := range wanted {
		if slices.Contains(allowed, t) {
			return t, nil
		}
	}
	return "", fmt.Errorf("the BMC does not allow the reset %s for this machine", strings.Join(wanted, " or "))
}

// messageID is an identifier of a message registry: Base.1.8.SessionLimitExceeded, IDRAC.2.4.RAC0218.
var messageID = regexp.MustCompile(`^[A-Za-z0-9]+(\.[A-Za-z0-9]+){1,5}$`)

// parseError returns the identifiers of the messages in an error answer, and whether it is one. The text of the
// messages is not used: they may repeat what was sent, also a password.
//
//	{"error": {"code": "Base.1.8.GeneralError", "message": "…",
//	    "@Message.ExtendedInfo": [{"MessageId": "Base.1.8.SessionLimitExceeded"}]}}
func parseError(data []byte) (ids []string, ok bool) {
	const shown, longest = 4, 80
	o, err := parseObject(data)
	if err != nil {
		return nil, false
	}
	inner, err := o.object("error")
	if err != nil {
		return nil, false
	}
	add := func(o object, key string) {
		id, err := o.text(key)
		if err == nil && len(id) <= longest && messageID.MatchString(id) && len(ids) < shown && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	infos, _ := inner.objects("@Message.ExtendedInfo")
	for _, info := range infos {
		add(info, "MessageId")
		add(info, "MessageID") // HPE iLO 4
	}
	add(inner, "code")
	return ids, inner.has("code")
}
