package redfish

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// uri returns the URI of a resource below the service root.
func (b *BMC) uri(path string) string {
	if b.options.Slash {
		path += "/"
	}
	return "/redfish/v1" + path
}

func link(uri string) map[string]any { return map[string]any{"@odata.id": uri} }

func (b *BMC) root() map[string]any {
	return map[string]any{
		"@odata.id": "/redfish/v1/", "@odata.type": "#ServiceRoot.v1_5_0.ServiceRoot", "RedfishVersion": "1.6.0",
		"Systems": link(b.uri("/Systems")), "SessionService": link(b.uri("/SessionService")),
		"Links": map[string]any{"Sessions": link(b.uri("/SessionService/Sessions"))},
	}
}

func (b *BMC) collection() map[string]any {
	members := make([]any, len(b.options.Systems))
	for i, name := range b.options.Systems {
		members[i] = link(b.uri("/Systems/" + name))
	}
	return map[string]any{"@odata.id": b.uri("/Systems"), "Members": members, "Members@odata.count": len(members)}
}

func (b *BMC) system(name string) map[string]any {
	b.mu.Lock()
	defer b.mu.Unlock()
	state := "Off"
	if b.on[name] {
		state = "On"
	}
	action := map[string]any{"target": b.uri("/Systems/" + name + "/Actions/ComputerSystem.Reset")}
	if b.options.ActionInfo {
		action["@Redfish.ActionInfo"] = b.uri("/Systems/" + name + "/ResetActionInfo")
	} else {
		action["ResetType@Redfish.AllowableValues"] = b.options.Allowed
	}
	s := map[string]any{
		"@odata.id": b.uri("/Systems/" + name), "@odata.type": "#ComputerSystem.v1_13_0.ComputerSystem",
		"Id": name, "Name": "System", "SystemType": "Physical", "PowerState": state, "UUID": nil,
		"Status":  map[string]any{"State": "Enabled", "Health": "OK"},
		"Actions": map[string]any{"#ComputerSystem.Reset": action},
	}
	if b.options.UUID != "" {
		s["UUID"] = b.options.UUID
	}
	return s
}

func (b *BMC) actionInfo(name string) map[string]any {
	return map[string]any{
		"@odata.id": b.uri("/Systems/" + name + "/ResetActionInfo"),
		"Parameters": []any{map[string]any{
			"Name": "ResetType", "Required": true, "DataType": "String", "AllowableValues": b.options.Allowed,
		}},
	}
}

func (b *BMC) answer(w http.ResponseWriter, status int, body map[string]any) {
	text, err := json.Marshal(body)
	if err != nil {
		status, text = http.StatusInternalServerError, nil
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

// fail answers with a Redfish error, or without a body.
func fail(w http.ResponseWriter, status int, id string, silent bool) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if silent {
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{
		"code": id, "message": "See @Message.ExtendedInfo",
		"@Message.ExtendedInfo": []any{map[string]any{"MessageId": id, "Message": "Not done."}},
	}})
}
